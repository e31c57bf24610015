# What people and the continuous integration run. `make setup` first; all targets may run again.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
# `make ARGS='--steps 100 --mesh 1x1' demo` passes flags on to the example.
ARGS ?=
TARGET := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help setup setup-test tools demo test lint docs examples bench

help:
	@echo 'setup       what a build needs, and the CPU plugin'
	@echo 'setup-test  the other two CPU plugins, for tests across versions'
	@echo 'demo        train a small GPT'
	@echo 'test        everything the continuous integration checks'
	@echo 'bench       benchmarks'
	@echo 'docs        the documentation, in target/doc'

# The programs that are missing are installed with apt-get if this user may.
tools:
	@missing=(); \
	command -v cc >/dev/null || missing+=(gcc libc6-dev); \
	command -v python3 >/dev/null || missing+=(python3); \
	python3 -m pip --version >/dev/null 2>&1 || missing+=(python3-pip); \
	if [ $${#missing[@]} -gt 0 ]; then \
	  if [ "$$(id -u)" = 0 ]; then as_root=(env); \
	  elif sudo -n true 2>/dev/null; then as_root=(sudo env); \
	  else echo "install first: $${missing[*]}" >&2; exit 1; fi; \
	  "$${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get update -q; \
	  "$${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -qy "$${missing[@]}"; \
	fi
	@command -v cargo >/dev/null || { \
	  echo 'cargo is missing: install Rust 1.95 or newer with rustup' >&2; exit 1; }

# The command line is run as it was built, since `cargo run` would build it again with other features
# of the crates that it shares with examples and tests.
setup: tools
	cargo build --bin oxbridge
	$(TARGET)/debug/oxbridge plugin install cpu

setup-test: tools
	cargo build --workspace --bins --examples --tests
	$(TARGET)/debug/oxbridge plugin install all-cpu

demo: tools
	cargo build --profile demo --bin oxbridge --example train_gpt
	$(TARGET)/demo/oxbridge plugin install cpu
	$(TARGET)/demo/examples/train_gpt $(ARGS)

# The tests come last, so that their summary ends the output.
test: setup-test lint docs examples
	cargo test --workspace --no-fail-fast

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

examples: setup-test
	$(TARGET)/debug/examples/first

# Each by name: `--benches` would build the library's own tests too.
bench:
	cargo bench --bench dispatch --bench trace --bench grad --bench gpt12
