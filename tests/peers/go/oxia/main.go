// A client of Oxia that does the table rows of make bench-peers.
package main

import (
	"context"
	"strings"
	"time"

	"antiphon.test/load"
	"github.com/oxia-db/oxia/oxia"
)

type store struct{ client oxia.SyncClient }

func (s store) Put(ctx context.Context, key string, value []byte) error {
	_, _, err := s.client.Put(ctx, key, value)
	return err
}

func (s store) Get(ctx context.Context, key string) error {
	_, _, _, err := s.client.Get(ctx, key)
	return err
}

func (s store) Scan(ctx context.Context, from, to string) (int, error) {
	count := 0
	for found := range s.client.RangeScan(ctx, from, to) {
		if found.Err != nil {
			return count, found.Err
		}
		count++
	}
	return count, nil
}

func open(_ context.Context, job load.Job) (load.Store, error) {
	linger := oxia.DefaultBatchLinger
	if job.InFlight == 1 {
		linger = 0 // nothing else would come into the batch
	}
	address, _, _ := strings.Cut(job.Servers, ",")
	client, err := oxia.NewSyncClient(address, oxia.WithBatchLinger(linger), oxia.WithRequestTimeout(30*time.Second))
	if err != nil {
		return nil, err
	}
	return store{client}, nil
}

func main() { load.Serve(open) }
