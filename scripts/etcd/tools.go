//go:build tools

// Package tools names etcd's server as a dependency, so that go.mod and go.sum pin it and all that it needs.
package tools

import _ "go.etcd.io/etcd/server/v3"
