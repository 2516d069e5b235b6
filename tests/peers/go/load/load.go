// Package load is what the clients written in Go have in common; tests/peers/clients/__init__.py says how one talks.
package load

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	longestUs  = 600_000_000
	digits     = 3
	tick       = time.Millisecond
	again      = 200 * time.Millisecond
	overdueMax = 50_000
	rest       = 30 * time.Second
	poolValues = 10_000
)

// Job is what the harness asks for.
type Job struct {
	Work       string  `json:"work"`
	Servers    string  `json:"servers"`
	Topic      string  `json:"topic"`
	ValueBytes int     `json:"value_bytes"`
	Keys       int     `json:"keys"`
	Scanned    int     `json:"scanned"`
	InFlight   int     `json:"in_flight"`
	Number     int64   `json:"number"`
	Seconds    float64 `json:"seconds"`
	WarmS      float64 `json:"warm_s"`
	Rate       float64 `json:"rate"`
}

// Store is a peer's keys and values through its own client. Get finds nothing wrong only where the key is there.
type Store interface {
	Put(ctx context.Context, key string, value []byte) error
	Get(ctx context.Context, key string) error
	Scan(ctx context.Context, from, to string) (int, error)
}

type result struct {
	Count   int64   `json:"count"`
	Seconds float64 `json:"seconds"`
	Failed  int64   `json:"failed"`
	Hdr     string  `json:"hdr,omitempty"`
}

type work struct {
	job    Job
	store  Store
	values [][]byte
}

// Serve is the life of a client process.
func Serve(open func(ctx context.Context, job Job) (Store, error)) {
	if err := serve(open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(open func(ctx context.Context, job Job) (Store, error)) error {
	var job Job
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: %s JOB", os.Args[0])
	}
	if err := json.Unmarshal([]byte(os.Args[1]), &job); err != nil {
		return err
	}
	ctx := context.Background()
	store, err := open(ctx, job)
	if err != nil {
		return err
	}
	w := &work{job: job, store: store, values: randomValues(job.ValueBytes)}
	if err := w.fill(ctx); err != nil {
		return fmt.Errorf("to fill: %w", err)
	}
	if job.WarmS > 0 {
		if _, err := w.run(ctx, job.WarmS); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	found, err := w.run(ctx, job.Seconds)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func randomValues(size int) [][]byte {
	source := rand.New(rand.NewSource(time.Now().UnixNano()))
	values := make([][]byte, poolValues)
	for at := range values {
		values[at] = make([]byte, size)
		source.Read(values[at])
	}
	return values
}

func key(number int) string { return fmt.Sprintf("key-%08d", number) }

// fill puts every key once, unless the last one is there.
func (w *work) fill(ctx context.Context) error {
	if w.store.Get(ctx, key(w.job.Keys-1)) == nil {
		return nil
	}
	var group sync.WaitGroup
	var failure atomic.Pointer[error]
	for worker := range 64 {
		group.Go(func() {
			for at := worker; at < w.job.Keys; at += 64 {
				if err := w.putPatiently(ctx, key(at), w.values[at%len(w.values)]); err != nil {
					failure.Store(&err)
					return
				}
			}
		})
	}
	group.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	return nil
}

// putPatiently tries again for a while: a cluster that has just begun to listen may have no leaders yet.
func (w *work) putPatiently(ctx context.Context, key string, value []byte) error {
	for began := time.Now(); ; time.Sleep(again) {
		err := w.store.Put(ctx, key, value)
		if err == nil || time.Since(began) > rest {
			return err
		}
	}
}

func (w *work) operation(source *rand.Rand) (func(ctx context.Context) error, error) {
	keys := w.job.Keys
	put := func(ctx context.Context) error {
		return w.store.Put(ctx, key(source.Intn(keys)), w.values[source.Intn(len(w.values))])
	}
	get := func(ctx context.Context) error { return w.store.Get(ctx, key(source.Intn(keys))) }
	switch w.job.Work {
	case "put":
		return put, nil
	case "get":
		return get, nil
	case "mixed":
		return func(ctx context.Context) error {
			if source.Intn(2) == 0 {
				return put(ctx)
			}
			return get(ctx)
		}, nil
	case "scan":
		return func(ctx context.Context) error {
			start := source.Intn(keys - w.job.Scanned)
			found, err := w.store.Scan(ctx, key(start), key(start+w.job.Scanned))
			if err == nil && found != w.job.Scanned {
				err = fmt.Errorf("a scan found %d rows", found)
			}
			return err
		}, nil
	}
	return nil, fmt.Errorf("no work %q", w.job.Work)
}

func (w *work) run(ctx context.Context, seconds float64) (result, error) {
	if _, err := w.operation(rand.New(rand.NewSource(0))); err != nil {
		return result{}, err
	}
	length := time.Duration(seconds * float64(time.Second))
	if w.job.Rate > 0 {
		return w.open(ctx, length)
	}
	return w.closed(ctx, length)
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longestUs, digits) }

func record(histogram *hdrhistogram.Histogram, took time.Duration) error {
	return histogram.RecordValue(min(longestUs, max(1, took.Microseconds())))
}

func (w *work) closed(ctx context.Context, length time.Duration) (result, error) {
	histograms := make([]*hdrhistogram.Histogram, w.job.InFlight)
	var failed atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for worker := range w.job.InFlight {
		histograms[worker] = newHistogram()
		group.Go(func() {
			operation, _ := w.operation(rand.New(rand.NewSource(w.job.Number<<32 + int64(worker))))
			for {
				at := time.Now()
				if at.Sub(began) >= length {
					return
				}
				if err := operation(ctx); err != nil || record(histograms[worker], time.Since(at)) != nil {
					failed.Add(1)
				}
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	whole := newHistogram()
	for _, one := range histograms {
		whole.Merge(one)
	}
	return told(whole, took, failed.Load())
}

// open starts operations when they are due, whatever the earlier ones do; a latency begins when its operation is due.
func (w *work) open(ctx context.Context, length time.Duration) (result, error) {
	ctx, cancel := context.WithTimeout(ctx, length+rest)
	defer cancel()
	whole := newHistogram()
	var lock sync.Mutex
	var failed, running atomic.Int64
	var group sync.WaitGroup
	source := rand.New(rand.NewSource(w.job.Number))
	began := time.Now()
	for given := 0; time.Since(began) < length; time.Sleep(tick) {
		until := int(time.Since(began).Seconds() * w.job.Rate)
		for ; given < until; given++ {
			due := began.Add(time.Duration(float64(given) / w.job.Rate * float64(time.Second)))
			if running.Load() >= overdueMax {
				failed.Add(1)
				continue
			}
			operation, _ := w.operation(rand.New(rand.NewSource(source.Int63())))
			running.Add(1)
			group.Go(func() {
				defer running.Add(-1)
				err := operation(ctx)
				took := time.Since(due)
				lock.Lock()
				defer lock.Unlock()
				if err != nil || record(whole, took) != nil {
					failed.Add(1)
				}
			})
		}
	}
	took := time.Since(began)
	group.Wait()
	return told(whole, took, failed.Load())
}

func told(histogram *hdrhistogram.Histogram, took time.Duration, failed int64) (result, error) {
	found := result{Count: histogram.TotalCount(), Seconds: took.Seconds(), Failed: failed}
	if found.Count > 0 {
		encoded, err := histogram.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
		if err != nil {
			return found, err
		}
		found.Hdr = string(encoded)
	}
	return found, nil
}
