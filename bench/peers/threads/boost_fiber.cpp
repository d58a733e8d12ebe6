// `upcall-boost-fiber`: Boost.Fiber behind the child protocol of the benchmark harness
// (bench/src/threads/child.rs). It has its defaults except for the size of stacks (README.md):
// round-robin scheduler, stacks from the C library's allocator without guard pages.

#include <boost/fiber/all.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <vector>

#include <csignal>

namespace fibers = boost::fibers;
using Clock = std::chrono::steady_clock;

// At the default size, 128 KiB, the C library maps each stack separately, which takes twice as
// long.
static fibers::fixedsize_stack stacks(64 * 1024);

struct Task {
    std::uint64_t threads, ops, samples;
};

struct Work {
    std::vector<std::uint64_t> samples_ns;
    std::uint64_t done = 0;

    void lap(Clock::time_point begun) {
        samples_ns.push_back(
            std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count());
    }
};

// Only a call: each result is the next call's argument.
__attribute__((noipa)) static std::uint64_t next(std::uint64_t count) { return count + 1; }

static Work procedure_calls(Task task) {
    Work work;
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto begun = Clock::now();
        for (std::uint64_t op = 0; op < task.ops; ++op) work.done = next(work.done);
        work.lap(begun);
    }
    return work;
}

static Work forks(Task task) {
    Work work;
    std::vector<fibers::fiber> threads;
    threads.reserve(task.ops);
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto begun = Clock::now();
        for (std::uint64_t op = 0; op < task.ops; ++op)
            threads.emplace_back(std::allocator_arg, stacks, [&work] { ++work.done; });
        work.lap(begun);
        for (auto &thread : threads) thread.join();
        threads.clear();
    }
    return work;
}

static Work forks_and_joins(Task task) {
    Work work;
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto begun = Clock::now();
        for (std::uint64_t op = 0; op < task.ops; ++op)
            fibers::fiber(std::allocator_arg, stacks, [&work] { ++work.done; }).join();
        work.lap(begun);
    }
    return work;
}

// A gate at which threads wait until `open` of them have arrived.
struct Gate {
    fibers::mutex mutex;
    fibers::condition_variable opened;
    std::uint64_t come = 0;

    void comes_and_waits(std::uint64_t open) {
        std::unique_lock<fibers::mutex> lock(mutex);
        if (++come == open) opened.notify_all();
        opened.wait(lock, [&] { return come >= open; });
    }
};

// All threads yield equally often, and none begins before all have arrived.
static Work yields(Task task) {
    Work work;
    Gate gate;
    std::uint64_t each = task.ops / task.threads, yields = 0;
    std::vector<fibers::fiber> others;
    for (std::uint64_t other = 1; other < task.threads; ++other)
        others.emplace_back(std::allocator_arg, stacks, [&] {
            gate.comes_and_waits(task.threads);
            for (std::uint64_t op = 0; op < each * task.samples; ++op) {
                boost::this_fiber::yield();
                ++yields;
            }
        });
    gate.comes_and_waits(task.threads);
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto begun = Clock::now();
        for (std::uint64_t op = 0; op < each; ++op) {
            boost::this_fiber::yield();
            ++work.done;
        }
        work.lap(begun);
    }
    for (auto &other : others) other.join();
    work.done += yields;
    return work;
}

static Work locks(Task task) {
    Work work;
    fibers::mutex mutex;
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto begun = Clock::now();
        for (std::uint64_t op = 0; op < task.ops; ++op) {
            std::lock_guard<fibers::mutex> lock(mutex);
            ++work.done;
        }
        work.lap(begun);
    }
    return work;
}

// The number under the mutex gives the turn: even is this thread's, odd is the other's.
static Work round_trips(Task task) {
    Work work;
    fibers::mutex mutex;
    fibers::condition_variable changed;
    std::uint64_t turn = 0;
    fibers::fiber other(std::allocator_arg, stacks, [&] {
        std::unique_lock<fibers::mutex> lock(mutex);
        for (std::uint64_t op = 0; op < task.ops * task.samples; ++op) {
            changed.wait(lock, [&] { return turn % 2 == 1; });
            ++turn;
            changed.notify_one();
        }
    });
    {
        std::unique_lock<fibers::mutex> lock(mutex);
        for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
            auto begun = Clock::now();
            for (std::uint64_t op = 0; op < task.ops; ++op) {
                ++turn;
                changed.notify_one();
                changed.wait(lock, [&] { return turn % 2 == 0; });
            }
            work.lap(begun);
        }
    }
    other.join();
    work.done = turn / 2;
    return work;
}

// The first sample is of one round, so that it is the first time.
static Work alive(Task task) {
    Work work;
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto begun = Clock::now();
        std::uint64_t rounds = sample == 0 ? 1 : task.ops / task.threads;
        for (std::uint64_t round = 0; round < rounds; ++round) {
            Gate gate;
            std::vector<fibers::fiber> threads;
            threads.reserve(task.threads);
            for (std::uint64_t thread = 0; thread < task.threads; ++thread)
                threads.emplace_back(std::allocator_arg, stacks, [&] {
                    gate.comes_and_waits(task.threads);
                    ++work.done;
                });
            for (auto &thread : threads) thread.join();
        }
        work.lap(begun);
    }
    return work;
}

static std::uint64_t cpu_ns() {
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return std::uint64_t(time.tv_sec) * 1000000000 + time.tv_nsec;
}

static Work idle(Task task) {
    Work work;
    Gate gate;
    std::uint64_t woken = 0;
    std::vector<fibers::fiber> threads;
    for (std::uint64_t thread = 0; thread < task.threads; ++thread)
        threads.emplace_back(std::allocator_arg, stacks, [&] {
            gate.comes_and_waits(task.threads + 1);
            ++woken;
        });
    while (gate.come < task.threads) boost::this_fiber::sleep_for(std::chrono::milliseconds(1));
    for (std::uint64_t sample = 0; sample < task.samples; ++sample) {
        auto before = cpu_ns();
        boost::this_fiber::sleep_for(std::chrono::seconds(1));
        work.samples_ns.push_back(cpu_ns() - before);
    }
    gate.comes_and_waits(task.threads + 1);
    for (auto &thread : threads) thread.join();
    work.done = woken * task.samples;
    return work;
}

// Returns the peak memory of this process, in KiB.
static std::uint64_t peak_kib() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (std::uint64_t kib; word == "VmHWM:" && status >> kib) return kib;
    throw std::runtime_error("no VmHWM in /proc/self/status");
}

static const std::map<std::string, std::function<Work(Task)>> cases = {
    {"procedure-call", procedure_calls}, {"fork", forks},   {"fork-join", forks_and_joins},
    {"yield", yields},                   {"lock-unlock", locks}, {"ping-pong", round_trips},
    {"alive", alive},                    {"idle", idle},
};

int main(int argc, char **argv) try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto usage = "upcall-boost-fiber is run by `upcall-bench threads --peers boost-fiber`";
    if (argc != 7 || std::strcmp(argv[1], "bench-threads") != 0) throw std::invalid_argument(usage);
    auto found = cases.find(argv[3]);
    if (found == cases.end()) throw std::invalid_argument(usage);

    auto base_kib = peak_kib();
    Work work = found->second({std::stoull(argv[4]), std::stoull(argv[5]), std::stoull(argv[6])});
    const char *separator = "";
    std::printf("{\"samples_ns\":[");
    for (auto ns : work.samples_ns) {
        std::printf("%s%lu", separator, ns);
        separator = ",";
    }
    std::printf("],\"done\":%lu,\"base_kib\":%lu,\"peak_kib\":%lu}\n", work.done, base_kib,
                peak_kib());
} catch (const std::exception &error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
}
