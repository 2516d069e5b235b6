// A client of NATS (a key-value bucket of JetStream, three replicas) that does the table rows of make bench-peers.
package main

import (
	"context"
	"errors"
	"time"

	"antiphon.test/load"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const patience = 30 * time.Second

type store struct{ bucket jetstream.KeyValue }

func (s store) Put(ctx context.Context, key string, value []byte) error {
	_, err := s.bucket.Put(ctx, key, value)
	return err
}

func (s store) Get(ctx context.Context, key string) error {
	_, err := s.bucket.Get(ctx, key)
	return err
}

func (s store) Scan(context.Context, string, string) (int, error) {
	return 0, errors.New("a bucket has no range of keys in order")
}

func open(ctx context.Context, job load.Job) (load.Store, error) {
	connection, err := nats.Connect(job.Servers)
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	config := jetstream.KeyValueConfig{Bucket: job.Topic, Replicas: 3, Storage: jetstream.FileStorage}
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		bucket, err := stream.CreateOrUpdateKeyValue(try, config)
		cancel()
		if err == nil {
			return store{bucket}, nil
		}
		if time.Since(began) > patience { // the three servers have not found one another, or no leader
			return nil, err
		}
	}
}

func main() { load.Serve(open) }
