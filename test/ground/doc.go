// Package ground runs the same checks, which are users' tasks, in each environment in which usher may run. The results
// are a table in docs/requirements.md. If a check unexpectedly fails or succeeds, the suite fails until the page is
// updated (make grounds).
package ground
