// A client of etcd (clientv3) that does the table rows of make bench-peers.
package main

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"antiphon.test/load"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const connections = 8 // one connection alone is a limit at 1,000 in flight

type store struct {
	clients []*clientv3.Client
	next    atomic.Uint64
}

func (s *store) client() *clientv3.Client {
	return s.clients[s.next.Add(1)%uint64(len(s.clients))]
}

func (s *store) Put(ctx context.Context, key string, value []byte) error {
	_, err := s.client().Put(ctx, key, string(value))
	return err
}

func (s *store) Get(ctx context.Context, key string) error {
	found, err := s.client().Get(ctx, key)
	if err == nil && len(found.Kvs) != 1 {
		return errors.New("no such key")
	}
	return err
}

func (s *store) Scan(ctx context.Context, from, to string) (int, error) {
	found, err := s.client().Get(ctx, from, clientv3.WithRange(to))
	if err != nil {
		return 0, err
	}
	return len(found.Kvs), nil
}

func open(_ context.Context, job load.Job) (load.Store, error) {
	made := &store{}
	for range min(job.InFlight, connections) {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: strings.Split(job.Servers, ","), DialTimeout: 10 * time.Second,
		})
		if err != nil {
			return nil, err
		}
		made.clients = append(made.clients, client)
	}
	return made, nil
}

func main() { load.Serve(open) }
