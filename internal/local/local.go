// Package local runs the Postgres and the Redis that a developer's machine or
// a test needs, as children of this process that die with it. It reads no
// environment; callers say what they found there. It never removes data.
//
//	postgres.go     StartPostgres: a server on a unix socket
//	cluster.go      its data directories: found, made, never wiped
//	find.go         where PostgreSQL's programs are on this machine
//	download.go     its programs from the net, when the machine has none
//	account.go      whom it runs as when we are root
//	redis.go        StartRedis: redis-server, valkey-server or miniredis
//	child.go        one child process, from start to end
//	child_linux.go  how a child dies with us: the kernel's doing
//	child_other.go  the same by a watching shell
//	socket.go       a private directory whose path a socket can bear
//	lock.go         Lock: one holder per data directory
package local
