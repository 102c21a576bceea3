// Drives River. README.md has the verbs.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

type args struct {
	P string `json:"p"`
}

func (args) Kind() string { return "bench" }

type worker struct {
	river.WorkerDefaults[args]
	begun func()
}

func (w *worker) Work(context.Context, *river.Job[args]) error {
	w.begun()
	return nil
}

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return value
}

func payload(bytes int) args { return args{P: strings.Repeat("x", max(bytes-8, 0))} }

func pool(ctx context.Context, url string) *pgxpool.Pool {
	config := must(pgxpool.ParseConfig(url))
	config.MaxConns = 20
	config.MinConns = 4
	return must(pgxpool.NewWithConfig(ctx, config))
}

// Best: as many slots as Tenure, and no pause between two fetches beyond the least that is allowed.
func client(pool *pgxpool.Pool, begun func(), best bool) *river.Client[pgx.Tx] {
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{begun: begun})
	config := &river.Config{
		Logger:  slog.New(slog.NewTextHandler(io.Discard, nil)),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers: workers,
	}
	if best {
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1000}}
		config.FetchCooldown = river.FetchCooldownMin
		config.FetchPollInterval = 50 * time.Millisecond
	}
	return must(river.NewClient(riverpgxv5.New(pool), config))
}

func addMany(ctx context.Context, c *river.Client[pgx.Tx], jobs, bytes int) {
	for done := 0; done < jobs; done += 1000 {
		var batch []river.InsertManyParams
		for range min(1000, jobs-done) {
			batch = append(batch, river.InsertManyParams{Args: payload(bytes)})
		}
		must(c.InsertManyFast(ctx, batch))
	}
}

func version() {
	info, _ := debug.ReadBuildInfo()
	for _, dep := range info.Deps {
		if dep.Path == "github.com/riverqueue/river" {
			fmt.Printf("river %s, %s\n", dep.Version, runtime.Version())
		}
	}
}

func main() {
	ctx := context.Background()
	verb := os.Args[1]
	switch verb {
	case "version":
		version()
		return
	case "drained":
		fmt.Println("SELECT NOT EXISTS (SELECT FROM river_job WHERE state IN ('available', 'running', 'retryable', 'pending', 'scheduled'))")
		return
	case "tables":
		fmt.Println("river_job")
		return
	}
	p := pool(ctx, os.Args[2])
	defer p.Close()
	if verb == "setup" {
		migrator := must(rivermigrate.New(riverpgxv5.New(p), nil))
		must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
		return
	}
	begun := make(chan time.Time, 1)
	tell := func() {}
	if verb == "latency" {
		tell = func() { begun <- time.Now() }
	}
	c := client(p, tell, os.Args[3] == "best")
	input := bufio.NewScanner(os.Stdin)
	switch verb {
	case "fill":
		addMany(ctx, c, must(strconv.Atoi(os.Args[3])), must(strconv.Atoi(os.Args[4])))
	case "work":
		fmt.Println("ready")
		input.Scan()
		must(0, c.Start(ctx))
		select {}
	case "enqueue":
		fmt.Println("ready")
		for input.Scan() {
			var times, jobs int
			must(fmt.Sscan(input.Text(), &times, &jobs))
			start := time.Now()
			for range times {
				if jobs == 1 {
					must(c.Insert(ctx, payload(100), nil))
				} else {
					addMany(ctx, c, jobs, 100)
				}
			}
			fmt.Println(time.Since(start).Seconds())
		}
	case "latency":
		must(0, c.Start(ctx))
		fmt.Println("ready")
		for input.Scan() {
			start := time.Now()
			must(c.Insert(ctx, payload(100), nil))
			fmt.Println(float64((<-begun).Sub(start).Nanoseconds()) / 1e3)
		}
	default:
		fmt.Fprintln(os.Stderr, "no verb", verb)
		os.Exit(2)
	}
}
