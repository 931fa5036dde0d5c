// Package tidy holds the plan of the house as a test: which room may stand on which,
// what the cores may not touch, where each library is used, and how long things are.
//
// It has no code of its own for users; `go test ./internal/tidy` fails when a change
// breaks the plan. An exception is a line in its tables with the reason beside it.
package tidy
