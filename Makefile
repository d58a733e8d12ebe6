# make demo        the main job: a file server in a process of its own, every byte proved
# make test        unit tests, tests across processes, crash tests, models, doctests and lints;
#                  lists every failure and every skip at the end
# make test-long   also the long variants, a longer soak, memory errors and data races (asan,
#                  tsan), the model of the message protocol (spin) and the count of shared cache
#                  lines (lines)
# make soak        kills and stops processes at random under a mixed load, for SECONDS (60), and
#                  accounts for every call and message
# make mutants     breaks the product on purpose, one break at a time, and checks that a test fails
# make fuzz        every reader of a peer's bytes under libFuzzer, for FUZZ_SECONDS (30) each
# make users       measures calls between two users beside calls within one
# make bystander   measures how late another client's calls and binds are beside hostile ones
# make against     compares the time of calls with that at the commit BASE (HEAD)
# make bench       ours, the machine's limits and the peers, in one run
# make pages       the tables and figures of docs/performance and README.md, from the records
# make bench-hello what hello world costs to build: time, size, crates, beside tonic
# make msrv        checks that the lowest Rust which Cargo.toml names compiles everything
# make package     the published crates as packages: built, installed, tested without the repository
# make wheel       the package `upcall` for Python, in target/wheels
# make book        the documents as HTML, in target/book
# make install     the command with its manual pages and completions, upvmcc for PVM programs, and
#                  libupcall with its header for C, below PREFIX (/usr/local); DESTDIR is put before
# make deb         the same as a package for Debian and Ubuntu, in target/deb
#
# Each target does all its set-up. Needed are Rust (1.88 or newer), gcc and Python (3.11 or newer;
# no headers). `make bench` also needs a C++ compiler, Boost.Fiber, gRPC's C++ library, UCX, Open
# MPI, Go, and Debian's redis-server, memcached and nats-server.

CARGO ?= cargo
PYTHON ?= python3
# The target folder, with its whole path.
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
.PHONY: all demo help clean test test-long lint unit docs models soak
.PHONY: bystander users mutants mutants-cargo miri miri-threads run-miri run-miri-threads
.PHONY: spin asan tsan lines fuzz msrv package
.PHONY: bench bench-c bench-python bench-hello against pages wheel install deb book

all:
	$(CARGO) build --release

help:
	@sed -n 's/^# \(make .*\|  .*\)/\1/p' Makefile

demo:
	$(CARGO) build --release --package upcall-files
	target/release/file-client $(ARGS)

# All tests run, whether or not some fail (tests/run.py). ARGS="--only unit --binary rpc" runs a
# part of them, ARGS="--repeat 20" repeats them.
test:
	@$(PYTHON) tests/run.py $(ARGS)

lint unit docs:
	@$(PYTHON) tests/run.py --only $@ $(ARGS)

# With three preemptions, where `make test` has two; and the models that take long.
models:
	@LOOM_MAX_PREEMPTIONS=3 $(PYTHON) tests/run.py --only models $(ARGS)

# `make soak SECONDS=1800`; ARGS="--seed 7 --trace" repeats a run's choices, ARGS=--help says more.
SECONDS ?= 60

soak:
	$(CARGO) run --quiet --package upcall-tests --bin soak -- --seconds $(SECONDS) $(ARGS)

# What hostile clients cost a bystander, beside what the kernel alone costs. ARGS=--help says more.
bystander:
	$(CARGO) run --quiet --release --package upcall-tests --bin bystander -- $(ARGS)

# Calls between two users beside calls within one. Needs root. ARGS=--help says more.
users:
	$(CARGO) run --quiet --release --package upcall-tests --bin users -- $(ARGS)

# The library of the working tree and that of a commit, in turns. ARGS=--help says more.
BASE ?= HEAD

against:
	@$(PYTHON) bench/against/against.py $(ARGS) $(BASE)

# The breaks of tests/mutants.toml. ARGS="--list" prints those of each requirement, ARGS="--only U3"
# makes those of one. Without ARGS cargo-mutants makes its own, too (.cargo/mutants.toml).
mutants:
	@$(PYTHON) tests/mutants.py $(ARGS)
	@$(if $(ARGS),true,$(MAKE) --no-print-directory mutants-cargo)

# Lists the breaks that no unit test notices. They are no failure (exit status 2, or 3 if tests
# hang), because some breaks change nothing that a program can see.
mutants-cargo:
	@if $(CARGO) mutants --version >/dev/null 2>&1; then \
	    $(CARGO) mutants --output $(TARGET); \
	    status=$$?; [ $$status -eq 0 -o $$status -eq 2 -o $$status -eq 3 ]; \
	else \
	    echo "mutants-cargo: skipped, no cargo-mutants here (cargo install cargo-mutants)"; \
	fi

# Miri comes with a nightly toolchain only. Where there is none, these targets say so and succeed.
# `shm` is checked with Tree Borrows. The older model refuses an atomic read of bytes that are
# borrowed shared, which a copy from a caller's argument makes. `make test-long` runs miri-threads,
# which takes some minutes.
miri miri-threads:
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
	    $(MAKE) --no-print-directory run-$@; \
	else \
	    echo "$@: skipped, no nightly toolchain with Miri here (rustup +nightly component add miri)"; \
	fi

run-miri:
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows" \
	    $(CARGO) +nightly miri test --quiet --target-dir target/miri --package upcall-shm --lib

run-miri-threads:
	MIRIFLAGS=-Zmiri-disable-isolation \
	    $(CARGO) +nightly miri test --quiet --target-dir target/miri --package upcall-thread \
	    --test sync --test primitives --test channel

# Checks the whole protocol of messages with Spin (crates/message/model/messages.pml), members that
# flood each other (limits.pml), and moves of tasks (crates/pvm/model/moves.pml). Spin visits all
# states, and must find each fault that is put in. Where there is no Spin, this target says so and
# succeeds.
spin:
	@if command -v spin >/dev/null; then \
	    crates/message/model/check.sh $(TARGET)/spin && \
	    crates/pvm/model/check.sh $(TARGET)/spin; \
	else \
	    echo "spin: skipped, no Spin here (apt-get install spin)"; \
	fi

# Checks accesses to memory with AddressSanitizer, in every process that a test starts. It leaves
# out:
# - doctests, and tests that measure time or memory, or look for a fault that the sanitizer reports;
# - variables on stacks, because the sanitizer does not know that threads leave their last frames;
# - leaks, because some are intended (upcall_thread::Processors::run);
# - the code of images, which has no sanitizer's runtime.
# With `upcall_asan` slots and arenas lie 16 TiB higher, above the sanitizer's own memory.
# The flag is unstable, and RUSTC_BOOTSTRAP lets the stable compiler take it.
asan:
	ASAN_OPTIONS=detect_leaks=0 RUSTC_BOOTSTRAP=1 \
	    RUSTFLAGS="-Zsanitizer=address -Cllvm-args=-asan-stack=0 --cfg upcall_asan" \
	    $(CARGO) test --quiet --workspace --lib --bins --tests \
	    --target x86_64-unknown-linux-gnu --target-dir target/asan -- \
	    --skip idle --skip overflow_hits_the_guard --skip other_faults_take \
	    --skip an_overflow_of_a_kernel --skip deadlines_that_fall_together \
	    --skip memory_of_blocks_that_nobody_holds --skip what_is_unmapped_crashes

# Looks for data races with ThreadSanitizer. Threads are kernel threads there, because the sanitizer
# cannot follow a switch of stacks. Needs a nightly toolchain with rust-src.
tsan:
	@if [ -d "$$(rustc +nightly --print sysroot 2>/dev/null)/lib/rustlib/src/rust/library" ]; then \
	    RUSTFLAGS="-Zsanitizer=thread --cfg upcall_kernel_threads" \
	        $(CARGO) +nightly test --quiet -Zbuild-std --target x86_64-unknown-linux-gnu \
	        --target-dir target/tsan --package upcall-thread \
	        --test sync --test primitives --test channel; \
	else \
	    echo "tsan: skipped, no nightly toolchain with its library's source here" \
	        "(rustup +nightly component add rust-src)"; \
	fi

# Runs every reader of a peer's bytes under libFuzzer, which prefers bytes that reach new code.
# Needs a nightly toolchain and cargo-fuzz (cargo install cargo-fuzz). Without them
# tests/tests/bad_input.rs gives the same readers random bytes. Faults are kept in
# tests/fuzz/artifacts, and bytes that reached new code in tests/fuzz/corpus for the next run.
FUZZ_SECONDS ?= 30

fuzz:
	@if $(CARGO) +nightly fuzz --version >/dev/null 2>&1; then \
	    cd tests/fuzz && targets=$$($(CARGO) +nightly run --quiet --bin samples) && \
	    for target in $$targets; do \
	        echo "fuzz: $$target"; \
	        $(CARGO) +nightly fuzz run --fuzz-dir . $$target -- -max_total_time=$(FUZZ_SECONDS) \
	            -timeout=10 -rss_limit_mb=4096 -max_len=8192 -verbosity=0 || exit 1; \
	    done; \
	else \
	    echo "fuzz: skipped, no nightly toolchain with cargo-fuzz here (cargo install cargo-fuzz)"; \
	fi

# Counts the cache lines that two pairs of processors share while they call: almost none
# (crates/rpc/tests/lines says how). The instrumentation is AddressSanitizer's. It calls functions
# of the test in place of the sanitizer's library.
LINES := --cfg upcall_count_lines -Zsanitizer=address -Zexternal-clangrt \
    -Cllvm-args=-asan-stack=0 -Cllvm-args=-asan-globals=0 -Cllvm-args=-asan-opt=0 \
    -Cllvm-args=-asan-constructor-kind=none \
    -Cllvm-args=-asan-instrumentation-with-call-threshold=0 \
    -Cllvm-args=-asan-memory-access-callback-prefix=__lines_

lines:
	RUSTC_BOOTSTRAP=1 RUSTFLAGS="$(LINES)" \
	    $(CARGO) test --quiet --release --package upcall-rpc --test lines \
	    --target x86_64-unknown-linux-gnu --target-dir target/lines -- --nocapture

# Compiles everything with the lowest Rust that Cargo.toml names. `make lint` already reports
# functions of the standard library that are newer.
MSRV := $(shell sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)

msrv:
	@if rustup run $(MSRV).0 cargo --version >/dev/null 2>&1; then \
	    RUSTUP_TOOLCHAIN=$(MSRV).0 cargo check --quiet --locked --workspace --all-targets \
	        --target-dir target/msrv && echo "msrv: ok with Rust $(MSRV)"; \
	else \
	    echo "msrv: skipped, no Rust $(MSRV) here" \
	        "(rustup toolchain install $(MSRV).0 --profile minimal)"; \
	fi

# What `cargo publish` would upload, in target/packages/package.
package:
	@$(PYTHON) tests/package.py --full

test-long: test models miri-threads spin asan tsan lines mutants package msrv
	UPCALL_ALL_PACKAGES=1 $(CARGO) test --release --workspace -- --include-ignored
	$(CARGO) test --package upcall-pvm --test examples -- --ignored all_programs
	$(CARGO) test --package upcall-pvm --test shuffled --test moves -- --ignored
	UPCALL_STRESS_SECONDS=600 $(CARGO) test --release --package upcall-thread --test stress
	$(MAKE) --no-print-directory soak SECONDS=600
	UPCALL_STEPS=1000000000 \
	    $(CARGO) test --release --package upcall-simulator --test chaos -- --nocapture
	$(CARGO) check --quiet --locked --bins --manifest-path bench/peers/Cargo.toml \
	    --target-dir bench/peers/target
	$(CARGO) check --quiet --locked --manifest-path bench/links/Cargo.toml \
	    --target-dir bench/links/target

# ARGS are for the suite rpc. THREADS_ARGS, URPC_ARGS, MESSAGES_ARGS, CACHE_ARGS, HOSTS_ARGS and
# LINKS_ARGS are for the suites of those names (`upcall-bench SUITE --help`).
bench:
	$(CARGO) build --release --package upcall-cli --package upcall-bench-command
	$(OUT)/upcall-bench rpc --peers all --json target/bench-rpc.json $(ARGS)
	$(OUT)/upcall-bench threads --peers all --json target/bench-threads.json \
	    --plot target/bench-threads $(THREADS_ARGS)
	$(OUT)/upcall-bench urpc --json target/bench-urpc.json \
	    --plot target/bench-urpc $(URPC_ARGS)
	$(OUT)/upcall-bench messages --peers all --json target/bench-messages.json \
	    --plot target/bench-messages $(MESSAGES_ARGS)
	$(OUT)/upcall-bench cache --peers all --json target/bench-cache.json $(CACHE_ARGS)
	$(OUT)/upcall-bench hosts --peers all --json target/bench-hosts.json $(HOSTS_ARGS)
	$(OUT)/upcall-bench links --json target/bench-links.json --plot target/bench-links $(LINKS_ARGS)
	@echo "records: target/bench-{rpc,threads,urpc,messages,cache,hosts,links}.json;" \
	    "figures: target/bench-{threads,urpc,messages,links}"

# Measures nothing: the records are in docs/performance/records. ARGS=--check compares.
pages:
	$(CARGO) run --quiet --package upcall-bench-command -- pages docs/performance $(ARGS)

# Hello world of ours and of tonic, built from nothing in turns. ARGS=--help says more.
bench-hello:
	@$(PYTHON) bench/hello/hello.py --json target/bench-hello.json $(ARGS)

# A call by a client in C beside one in Rust, of one server, in turns.
bench-c:
	$(MAKE) --no-print-directory install DESTDIR= PREFIX=$(abspath $(OUT)/c)
	$(CARGO) run --release --package upcall-c --example calls -- $(OUT)/c

# Tools that Python's pip installs, in a folder of their own and not among the system's packages.
# Debian has `venv` in a package by itself; pip alone is enough.
TOOLS := $(TARGET)/python-tools
PIP := --quiet --disable-pip-version-check

$(TOOLS)/%/.there:
	@if $(PYTHON) -m pip --version >/dev/null 2>&1; then \
	    $(PYTHON) -m pip install $(PIP) --root-user-action=ignore \
	        --target $(TOOLS)/$* $(or $(PINNED_$*),$*); \
	elif $(PYTHON) -c "import ensurepip, venv" >/dev/null 2>&1; then \
	    $(PYTHON) -m venv $(TOOLS)/$*-venv && $(TOOLS)/$*-venv/bin/pip install $(PIP) \
	        --target $(TOOLS)/$* $(or $(PINNED_$*),$*); \
	else \
	    echo "$(PYTHON) has neither pip nor venv: apt install python3-venv (or python3-pip)," \
	        "and try again"; exit 1; \
	fi
	@touch $@

PINNED_maturin := maturin==1.16.0
PINNED_grpcio := grpcio==1.85.1

# The package for Python: pip install target/wheels/upcall-*.whl. The extension module is linked
# with no library of Python, so Python's headers are not needed.
wheel: $(TOOLS)/maturin/.there
	cd bindings/python && $(TOOLS)/maturin/bin/maturin build --release --out $(TARGET)/wheels

# A call by a client in Python beside multiprocessing's pipes and gRPC, in turns.
bench-python: wheel
	@$(MAKE) --no-print-directory $(TOOLS)/grpcio/.there || \
	    echo "grpcio cannot be had, and is left out"
	$(CARGO) build --release --package upcall-python --example serve_every
	$(CARGO) build --release --bin upcall
	rm -rf $(TOOLS)/upcall
	$(PYTHON) -c "import glob, zipfile; \
	    wheel = max(glob.glob('$(TARGET)/wheels/upcall-*.whl')); \
	    zipfile.ZipFile(wheel).extractall('$(TOOLS)/upcall')"
	$(OUT)/upcall wit generate bindings/c/tests/languages/every.wit --lang python \
	    -o $(TOOLS)/upcall/every.py
	PYTHONPATH=$(TOOLS)/upcall:$(TOOLS)/grpcio \
	    $(PYTHON) bindings/python/examples/calls.py $(OUT)/examples/serve_every $(ARGS)

# The shared and the static library are built without the Rust library, so that each is optimised as
# a whole. Running ldconfig is left to the person who installs.
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
OUT := $(or $(CARGO_TARGET_DIR),target)/release
SHARE = $(DESTDIR)$(PREFIX)/share

install:
	$(CARGO) build --release --bin upcall
	$(CARGO) build --release --package upcall-pvm --bins
	$(CARGO) rustc --release --package upcall-c --lib --crate-type cdylib,staticlib
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(LIBDIR)/pkgconfig
	install $(OUT)/upcall $(DESTDIR)$(PREFIX)/bin/upcall
	$(OUT)/upcall man --out $(SHARE)/man/man1
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions
	install -d $(SHARE)/fish/vendor_completions.d
	$(OUT)/upcall completions bash > $(SHARE)/bash-completion/completions/upcall
	$(OUT)/upcall completions zsh > $(SHARE)/zsh/site-functions/_upcall
	$(OUT)/upcall completions fish > $(SHARE)/fish/vendor_completions.d/upcall.fish
	install -m 644 bindings/c/include/upcall.h bindings/c/include/upcall_message.h \
	    $(DESTDIR)$(PREFIX)/include
	install $(OUT)/libupcall_c.so $(DESTDIR)$(LIBDIR)/libupcall.so.$(VERSION)
	ln -sf libupcall.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libupcall.so.0
	ln -sf libupcall.so.0 $(DESTDIR)$(LIBDIR)/libupcall.so
	install -m 644 $(OUT)/libupcall_c.a $(DESTDIR)$(LIBDIR)/libupcall.a
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' \
	    bindings/c/upcall.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/upcall.pc
	install -d $(DESTDIR)$(LIBDIR)/cmake/upcall
	for file in upcall-config upcall-config-version; do \
	    sed -e 's|@INCLUDEDIR@|$(PREFIX)/include|' -e 's|@BINDIR@|$(PREFIX)/bin|' \
	        -e 's|@VERSION@|$(VERSION)|' bindings/c/cmake/$$file.cmake \
	        > $(DESTDIR)$(LIBDIR)/cmake/upcall/$$file.cmake || exit 1; \
	done
	install $(OUT)/upvmcc $(OUT)/upvmf77 $(OUT)/upvmf90 $(DESTDIR)$(PREFIX)/bin
	install $(OUT)/upvmcxx $(DESTDIR)$(PREFIX)/bin/upvmc++
	$(OUT)/upvmcc --upvm-unpack $(DESTDIR)$(LIBDIR)/upvm $(PREFIX)/bin/upcall
	sed -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' crates/pvm/upvm.pc.in \
	    > $(DESTDIR)$(LIBDIR)/pkgconfig/upvm.pc
	install -d $(DESTDIR)$(LIBDIR)/cmake/upvm
	install -m 644 crates/pvm/upvm-config.cmake $(DESTDIR)$(LIBDIR)/cmake/upvm

# What `make install` installs, as a package for Debian and Ubuntu:
# `apt install ./target/deb/upcall_*.deb`.
DEB := $(TARGET)/deb

deb:
	@command -v dpkg-deb objdump >/dev/null || \
	    { echo "deb: dpkg-deb or objdump is missing (apt install dpkg binutils)"; exit 1; }
	@test $(words $(DEB)) = 1 || \
	    { echo "deb: the path \"$(DEB)\" has a space, which make cannot handle"; exit 1; }
	rm -rf "$(DEB)"
	umask 022 && $(MAKE) --no-print-directory install DESTDIR=$(DEB)/root PREFIX=/usr \
	    LIBDIR=/usr/lib/x86_64-linux-gnu
	umask 022 && packaging/deb.sh $(DEB)/root $(DEB)/upcall_$(VERSION)_amd64.deb $(VERSION)

# The documents as a book, and a check of all links. mdBook is built once if it is not there.
MDBOOK_VERSION := 0.5.4
MDBOOK := $(or $(shell command -v mdbook),$(TARGET)/tools/bin/mdbook)

$(TARGET)/tools/bin/mdbook:
	$(CARGO) install --quiet --locked --root $(TARGET)/tools mdbook --version $(MDBOOK_VERSION)

book: $(MDBOOK)
	@$(PYTHON) tests/book.py --check
	@said=$$(PYTHON="$(PYTHON)" $(MDBOOK) build docs 2>&1) || { echo "$$said"; exit 1; }; \
	    if echo "$$said" | grep -E "WARN|ERROR"; then echo "book: mdBook warns"; exit 1; fi
	@echo "book: target/book/index.html"

clean:
	$(CARGO) clean
