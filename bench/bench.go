// Package bench measures the same work on Piecework and on its peers, side by
// side on one machine and in one run: only the ratios mean anything. It is a
// module of its own, so that the peers never become dependencies.
package bench
