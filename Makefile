# The front door; CMakePresets.json and tools/ do the work.
.PHONY: help demo test test-all bench format lint deps clean
JOBS ?= $(shell nproc)
export JOBS

help:
	@echo "make demo     build, run exact attention on the tensors of data/, sweep lengths (demo_output/)"
	@echo "make test     build and run every test"
	@echo "make test-all the same, then compile budget, CUDA rows, sanitizers, aarch64"
	@echo "make bench    benchmarks; results in build/bench.json"
	@echo "make lint     rules of the tree and the format"
	@echo "make format   format the C++ files"
	@echo "make release  build everything in build/release (the command is apps/rowmax/rowmax there)"
	@echo "make deps     install the packages that the build needs (root and apt), or print the line"

deps:
	@tools/install_deps.sh build

build/release/build.ninja: | deps
	@cmake --preset release

# CMake regenerates by itself; configuring needs the packages once.
.PHONY: release command
release: build/release/build.ninja
	@cmake --build --preset release -j $(JOBS)

# The command alone: no tests, no benchmarks.
command: build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target rowmax_command

demo: command
	@tools/demo.sh build/release/apps/rowmax/rowmax

test: deps
	@tools/test.sh

test-all: deps
	@tools/test.sh release rows objects readme fuzz budget cuda asan tsan aarch64

bench: command
	@build/release/apps/rowmax/rowmax bench --suite bench --json build/bench.json

format:
	@tools/format.sh

lint:
	@tools/install_deps.sh lint
	@tools/format.sh --check
	@python3 tools/check_tree.py
	@python3 tools/plant_faults.py --check

clean:
	@rm -rf build
