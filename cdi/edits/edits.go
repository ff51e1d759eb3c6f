// Package edits is the one value in which berth says what must change in an OCI
// runtime spec. Package cdi produces edits that add (devices, driver files,
// environment), package isolation produces edits that take away (foreign nodes,
// rules, capabilities); berth.Prepare merges them and applies the result.
//
// Edits are plain data: producing, merging and applying them touches nothing
// outside the process. Applying the same edits twice is the same as once.
package edits
