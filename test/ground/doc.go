// Package ground runs the same checks of what users do with usher in each environment in which usher may run. The
// results are a table in docs/requirements.md. If a check unexpectedly fails or unexpectedly succeeds, the suite fails
// until the page is updated (make grounds).
package ground
