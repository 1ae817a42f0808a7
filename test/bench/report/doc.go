// Package report keeps results of measurements and makes a page of them: ratios
// round by round, medians, tables, plots. It measures nothing.
package report
