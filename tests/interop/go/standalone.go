// Package server takes the place of Oxia's own in the tests of its client: where these start a server in their process,
// nodes of Antiphon start, in whose namespace "default" there is nothing.
package server

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Config has what the tests set or read of a server's configuration.
type Config struct {
	DataDir           string
	WalDir            string
	PublicServiceAddr string
}

// StandaloneConfig says how many shards the namespace has.
type StandaloneConfig struct {
	Config

	NumShards            uint32
	NotificationsEnabled bool
}

// Standalone is a cluster of its own, which runs until Close.
type Standalone struct {
	process *exec.Cmd
	stdin   io.WriteCloser
	port    int
}

// NewTestConfig is for one shard.
func NewTestConfig(dir string) StandaloneConfig {
	return StandaloneConfig{
		Config:               Config{DataDir: filepath.Join(dir, "db"), WalDir: filepath.Join(dir, "wal")},
		NumShards:            1,
		NotificationsEnabled: true,
	}
}

// NewStandalone starts nodes and waits until they serve.
func NewStandalone(config StandaloneConfig) (*Standalone, error) {
	shards := strconv.Itoa(int(config.NumShards))
	process := exec.Command(os.Getenv("ANTIPHON_PYTHON"), "-m", "tests.interop.oxia_standalone", shards)
	process.Env = append(os.Environ(), "PYTHONPATH="+os.Getenv("ANTIPHON_PATH"))
	process.Stderr = os.Stderr
	stdin, err := process.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the nodes did not start: %w", err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return nil, fmt.Errorf("the nodes say %q in the place of a port", line)
	}
	return &Standalone{process: process, stdin: stdin, port: port}, nil
}

// RpcPort is where clients connect to.
func (s *Standalone) RpcPort() int {
	return s.port
}

// Close stops the nodes.
func (s *Standalone) Close() error {
	if err := s.stdin.Close(); err != nil {
		return err
	}
	return s.process.Wait()
}
