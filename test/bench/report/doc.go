// Package report stores results of measurements and creates a page from them: ratios for each round, medians, tables,
// plots. It measures nothing.
package report
