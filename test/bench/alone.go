package main

import "context"

const aboutAlone = "`berth-runtime create` in front of a runtime that does nothing (`true`): berth's own part, without what a real runtime takes for the larger spec."

// alone measures the wrapper with a runtime that does nothing.
func (b *bench) alone(ctx context.Context) (section, error) {
	conf, err := b.config("/bin/true")
	if err != nil {
		return section{}, err
	}
	results, err := b.run(ctx, "alone", []way{
		{name: "true", runtime: []string{"/bin/true"}},
		{name: "an empty Go program", runtime: []string{built + "/empty", "/bin/true"}, floor: true},
		b.wrapped(conf, 0, ""), b.wrapped(conf, 1, "≤ floor + 1.5 ms"), b.wrapped(conf, b.gpus, ""),
	})
	return compare("berth-runtime alone", aboutAlone, results), err
}
