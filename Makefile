# make demo        the main job: a file server in a process of its own, every byte proved
# make test        everything quick: unit, cross-process, crash, models, doctests, lints
# make test-long   the long variants too; tests named open_ show what CAVEATS.md says is open, and are left out
# make bench       ours, the machine's limits and the peers, in one run
#
# Each target does all its set-up. Needed: Rust (1.95 or newer), gcc, Python 3.

CARGO ?= cargo
LOOM := RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --release --target-dir target/loom

.PHONY: all demo test test-long bench lint unit models miri clean

all:
	$(CARGO) build --release

demo:
	$(CARGO) build --release --package upcall-files
	target/release/file-client $(ARGS)

test: lint unit models miri

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings

unit:
	$(CARGO) test --workspace --quiet

# Every lock-free piece under a model checker, all interleavings.
models:
	$(LOOM) --package upcall-shm --test loom_ring
	$(LOOM) --package upcall-transfer --test loom_sleep --test loom_gate
	$(LOOM) --package upcall-thread --test loom_fresh --test loom_lock --test loom_park

# Miri comes with a nightly toolchain only; where there is none this says so and goes on.
miri:
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
	    MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --target-dir target/miri --package upcall-shm --lib; \
	else \
	    echo "miri: skipped, no nightly toolchain with Miri here (rustup +nightly component add miri)"; \
	fi

test-long: test
	$(CARGO) test --release --workspace -- --include-ignored --skip open_

bench:
	$(CARGO) build --release --bin upcall
	target/release/upcall bench rpc --peers all --json target/bench-rpc.json $(ARGS)
	@echo "records: target/bench-rpc.json"

clean:
	$(CARGO) clean
