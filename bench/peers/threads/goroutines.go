// Command upcall-goroutines: Go behind the child protocol of the benchmark harness
// (bench/src/threads/child.rs). Goroutines run on one processor, which is Go's default for a process
// that is confined to one (README.md).
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type task struct{ threads, ops, samples int }

// Work is the answer: the duration of each sample, the number of operations whose effect was found,
// and the peak memory before the system began and at the end.
type Work struct {
	Samples []int64 `json:"samples_ns"`
	Done    int     `json:"done"`
	Base    int     `json:"base_kib"`
	Peak    int     `json:"peak_kib"`
}

func (w *Work) lap(begun time.Time) {
	w.Samples = append(w.Samples, time.Since(begun).Nanoseconds())
}

// Only a call: each result is the next call's argument.
//
//go:noinline
func next(count int) int { return count + 1 }

func procedureCalls(t task) (w Work) {
	for sample := 0; sample < t.samples; sample++ {
		begun := time.Now()
		for op := 0; op < t.ops; op++ {
			w.Done = next(w.Done)
		}
		w.lap(begun)
	}
	return
}

func forks(t task) (w Work) {
	var ended sync.WaitGroup
	var done int64
	for sample := 0; sample < t.samples; sample++ {
		ended.Add(t.ops)
		begun := time.Now()
		for op := 0; op < t.ops; op++ {
			go func() {
				atomic.AddInt64(&done, 1)
				ended.Done()
			}()
		}
		w.lap(begun)
		ended.Wait()
	}
	w.Done = int(done)
	return
}

func forksAndJoins(t task) (w Work) {
	var ended sync.WaitGroup
	for sample := 0; sample < t.samples; sample++ {
		begun := time.Now()
		for op := 0; op < t.ops; op++ {
			ended.Add(1)
			go func() {
				w.Done++
				ended.Done()
			}()
			ended.Wait()
		}
		w.lap(begun)
	}
	return
}

// All goroutines yield equally often, and none begins before all have arrived.
func yields(t task) (w Work) {
	each, yields := t.ops/t.threads, 0
	gate := newGate()
	var ended sync.WaitGroup
	for other := 1; other < t.threads; other++ {
		ended.Add(1)
		go func() {
			gate.comesAndWaits(t.threads)
			for op := 0; op < each*t.samples; op++ {
				runtime.Gosched()
				yields++
			}
			ended.Done()
		}()
	}
	gate.comesAndWaits(t.threads)
	for sample := 0; sample < t.samples; sample++ {
		begun := time.Now()
		for op := 0; op < each; op++ {
			runtime.Gosched()
			w.Done++
		}
		w.lap(begun)
	}
	ended.Wait()
	w.Done += yields
	return
}

func locks(t task) (w Work) {
	var mutex sync.Mutex
	for sample := 0; sample < t.samples; sample++ {
		begun := time.Now()
		for op := 0; op < t.ops; op++ {
			mutex.Lock()
			w.Done++
			mutex.Unlock()
		}
		w.lap(begun)
	}
	return
}

// The number under the mutex gives the turn: even is this goroutine's, odd is the other's.
func roundTrips(t task) (w Work) {
	var mutex sync.Mutex
	changed := sync.NewCond(&mutex)
	turn := 0
	var ended sync.WaitGroup
	ended.Add(1)
	go func() {
		mutex.Lock()
		for op := 0; op < t.ops*t.samples; op++ {
			for turn%2 == 0 {
				changed.Wait()
			}
			turn++
			changed.Signal()
		}
		mutex.Unlock()
		ended.Done()
	}()
	mutex.Lock()
	for sample := 0; sample < t.samples; sample++ {
		begun := time.Now()
		for op := 0; op < t.ops; op++ {
			turn++
			changed.Signal()
			for turn%2 == 1 {
				changed.Wait()
			}
		}
		w.lap(begun)
	}
	mutex.Unlock()
	ended.Wait()
	w.Done = turn / 2
	return
}

// A gate at which goroutines wait until `open` of them have arrived.
type gate struct {
	mutex  sync.Mutex
	opened *sync.Cond
	come   int
}

func newGate() *gate {
	g := &gate{}
	g.opened = sync.NewCond(&g.mutex)
	return g
}

func (g *gate) comesAndWaits(open int) {
	g.mutex.Lock()
	g.come++
	if g.come == open {
		g.opened.Broadcast()
	}
	for g.come < open {
		g.opened.Wait()
	}
	g.mutex.Unlock()
}

func (g *gate) hasCome() int {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.come
}

// The first sample is of one round, so that it is the first time.
func alive(t task) (w Work) {
	var done int64
	for sample := 0; sample < t.samples; sample++ {
		begun := time.Now()
		rounds := t.ops / t.threads
		if sample == 0 {
			rounds = 1
		}
		for round := 0; round < rounds; round++ {
			gate := newGate()
			var ended sync.WaitGroup
			ended.Add(t.threads)
			for thread := 0; thread < t.threads; thread++ {
				go func() {
					gate.comesAndWaits(t.threads)
					atomic.AddInt64(&done, 1)
					ended.Done()
				}()
			}
			ended.Wait()
		}
		w.lap(begun)
	}
	w.Done = int(done)
	return
}

// CPU time of all threads of this process so far.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func idle(t task) (w Work) {
	gate := newGate()
	var woken int64
	var ended sync.WaitGroup
	ended.Add(t.threads)
	for thread := 0; thread < t.threads; thread++ {
		go func() {
			gate.comesAndWaits(t.threads + 1)
			atomic.AddInt64(&woken, 1)
			ended.Done()
		}()
	}
	for gate.hasCome() < t.threads {
		time.Sleep(time.Millisecond)
	}
	for sample := 0; sample < t.samples; sample++ {
		before := cpu()
		time.Sleep(time.Second)
		w.Samples = append(w.Samples, int64(cpu()-before))
	}
	gate.comesAndWaits(t.threads + 1)
	ended.Wait()
	w.Done = int(woken) * t.samples
	return
}

// Returns the peak memory of this process, in KiB.
func peakKiB() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		panic(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmHWM:" {
			kib, _ := strconv.Atoi(fields[1])
			return kib
		}
	}
	panic("no VmHWM in /proc/self/status")
}

var cases = map[string]func(task) Work{
	"procedure-call": procedureCalls, "fork": forks, "fork-join": forksAndJoins, "yield": yields,
	"lock-unlock": locks, "ping-pong": roundTrips, "alive": alive, "idle": idle,
}

// The whole process gets the signal when its parent dies. The setting belongs to the calling thread,
// which is the first one here and lives as long as the process.
func init() {
	syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0)
}

func main() {
	usage := func() {
		fmt.Fprintln(os.Stderr, "upcall-goroutines is run by `upcall-bench threads --peers go`")
		os.Exit(1)
	}
	if len(os.Args) != 7 || os.Args[1] != "bench-threads" {
		usage()
	}
	run, found := cases[os.Args[3]]
	threads, errThreads := strconv.Atoi(os.Args[4])
	ops, errOps := strconv.Atoi(os.Args[5])
	samples, errSamples := strconv.Atoi(os.Args[6])
	if !found || errThreads != nil || errOps != nil || errSamples != nil {
		usage()
	}
	runtime.GOMAXPROCS(1)
	base := peakKiB()
	work := run(task{threads, ops, samples})
	work.Base, work.Peak = base, peakKiB()
	if err := json.NewEncoder(os.Stdout).Encode(work); err != nil {
		panic(err)
	}
}
