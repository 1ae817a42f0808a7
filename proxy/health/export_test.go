package health

// Jobs returns the number of probes that are planned or in progress.
func (p *Prober) Jobs() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.jobs)
}
