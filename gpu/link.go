package gpu

// Link returns how the GPUs with the indexes a and b reach each other, with A
// and B as asked. Of a pair that discovery knew nothing about, PCIe is "".
func (inv Inventory) Link(a, b int) Link {
	for _, l := range inv.Links {
		if l.A == min(a, b) && l.B == max(a, b) {
			l.A, l.B = a, b
			return l
		}
	}
	return Link{A: a, B: b}
}

// score says how well a pair works together: the field's common scale, in which
// one NVLink outweighs every difference of the PCIe path.
func (l Link) score() int {
	score := 100 * l.NVLinks
	switch l.PCIe {
	case PathSYS:
		score += 10
	case PathNODE:
		score += 20
	case PathPHB:
		score += 30
	case PathPXB:
		score += 40
	case PathPIX:
		score += 50
	}
	return score
}

// scores returns the score of each pair of GPUs, by index.
func (inv Inventory) scores() [][]int {
	n := len(inv.GPUs)
	all := make([][]int, n)
	cells := make([]int, n*n)
	for i := range all {
		all[i] = cells[i*n : (i+1)*n]
	}
	for _, l := range inv.Links {
		if l.A >= 0 && l.A < n && l.B >= 0 && l.B < n && l.A != l.B {
			all[l.A][l.B] = l.score()
			all[l.B][l.A] = l.score()
		}
	}
	return all
}
