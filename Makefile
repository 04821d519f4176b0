# SPDX-License-Identifier: Apache-2.0
# The two commands of the README: `make demo` and `make test`. Each installs what it needs (as root) or names it.
.PHONY: help demo demo-codecs test test-dev test-python build-sanitizers test-asan test-tsan bench bench-torch bench-adaptive bench-plan bench-loss bench-service fuzz mutants format check-format build-release python-env clean
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 60
TSAN_TESTS = base_test reduce_test pipeline_test float_equality_test example_c service_test service_net_test tree_net_test
space := $(subst ,, )
# RETRY=1, as CI has it on shared machines: a test that failed gets a second try, alone, and the log shows both. What a
# sanitizer found gets none.
run_tests = rm -rf build/$(1)/Testing/Temporary; ctest --preset $(1) -j $(JOBS) $(2) $(if $(RETRY),|| { \
  ! grep -E 'Sanitizer: |runtime error: ' build/$(1)/Testing/Temporary/LastTest.log && \
  ctest --preset $(1) --rerun-failed --no-tests=error; })
PYTEST = ADDEND_LIBRARY=$(CURDIR)/build/dev/src/capi/libaddend.so \
         ADDEND_COMMAND=$(CURDIR)/build/dev/apps/addend/addend .venv/bin/pytest
SOURCES = $(shell git ls-files '*.h' '*.cc' '*.c' '*.cu' '*.cuh')

help:
	@echo 'make demo    install what is needed, train three models with and without Addend, write out/report.html'
	@echo 'make test    install what is needed, build and run all tests (dev, Python, then sanitizers)'
	@echo 'make bench   the bars: quant against rivals, kernels and codecs against memcpy, pass or fail; bench-torch: against torch'
	@echo 'make fuzz    libFuzzer on every parser and decoder, FUZZ_SECONDS=60 each'
	@echo 'make mutants shows that the tests notice known mistakes; MUTANTS="--only quant" for some of them'
	@echo 'make format  clang-format and ruff format all sources'

build-release:
	tools/install_packages.sh build
	cmake --preset release
	cmake --build --preset release -j $(JOBS)

# Trains with real DDP processes over shaped links; as root, for the namespaces that shape them.
demo: python-env
	tools/install_packages.sh demo
	.venv/bin/python -m demo --out out/report.html

# The same codecs without a network or a framework: threads of one process, every element checked.
demo-codecs: build-release
	mkdir -p out
	build/release/apps/addend/addend demo --out out/codecs.json
	python3 tools/report.py out/codecs.json -o out/codecs.html
	@echo 'report: out/codecs.html'

# quant's errors against rivals of as many bits, then times.
bench: build-release python-env
	.venv/bin/python bench/fidelity.py
	build/release/apps/addend/addend bench

# The PyTorch front against torch's own collectives; wants a quiet machine.
bench-torch: python-env
	.venv/bin/python bench/torch_bars.py

# What `addend plan` predicts against what the demo measures over shaped links (as root). PLAN_BARS=--full takes all
# links, workers and models, half an hour.
bench-plan: python-env build-release
	tools/install_packages.sh demo
	.venv/bin/python bench/plan_bars.py build/release/apps/addend/addend $(PLAN_BARS)

# codec="adaptive" in the demo's training against plain DDP and fixed codecs, in turn (as root, ten minutes).
bench-adaptive: python-env
	tools/install_packages.sh demo
	.venv/bin/python bench/adaptive_bars.py

# Time until a loss is reached: dense, fixed codecs, adaptive policies (as root, a quarter of an hour).
bench-loss: python-env
	tools/install_packages.sh demo
	.venv/bin/python bench/time_to_loss.py

# The service's bars: goodput against bare UDP, whole and split super-packets; the XDP program; 1 Gbit/s links; loss (as root).
# LOSS_BARS=--full takes all paths and sizes, a quarter of an hour.
bench-service: python-env
	tools/install_packages.sh build test
	cmake --preset bench
	cmake --build --preset bench -j $(JOBS) --target service_goodput service_abuse bad_wire driver_bars addend
	build/bench/tests/service_goodput
	ip netns add addend-split && ip netns exec addend-split ip link set lo up gso_max_segs 1
	ip netns exec addend-split build/bench/tests/service_goodput; code=$$?; ip netns del addend-split; exit $$code
	python3 tests/net/bars.py build/bench/apps/addend/addend .venv/bin/python
	python3 tests/net/mesh_bars.py build/bench/apps/addend/addend .venv/bin/python
	python3 tests/net/tree_test.py build/bench/apps/addend/addend --bars
	python3 tests/net/abuse_test.py build/bench/apps/addend/addend build/bench/tests/service_abuse --bench
	python3 tests/net/loss_bars.py build/bench/apps/addend/addend build/bench/tests/bad_wire $(LOSS_BARS)
	python3 tests/net/ahead_bars.py build/bench/apps/addend/addend build/bench/tests/bad_wire
	build/bench/tests/driver_bars
	python3 tests/net/xdp_bars.py build/bench/apps/addend/addend

# The Python suite mostly waits; the sanitizers' builds take what it leaves of the cores.
test: check-format test-dev
	$(MAKE) -j 2 test-python build-sanitizers
	$(MAKE) test-asan test-tsan

check-format:
	tools/install_packages.sh build test
	clang-format-14 --dry-run -Werror $(SOURCES)

test-dev:
	tools/install_packages.sh build test
	cmake --preset dev
	cmake --build --preset dev -j $(JOBS)
	$(call run_tests,dev)

# .venv with torch, the developers' tools and this package.
python-env:
	tools/install_packages.sh build python
	tools/python_env.sh

# With the library of the dev build, for its assertions; one test builds and installs the wheel.
test-python: python-env
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	cmake --preset dev
	cmake --build --preset dev -j $(JOBS) --target addend_c addend
	$(PYTEST) $(if $(RETRY),|| { [ $$? = 1 ] && $(PYTEST) --last-failed; })

# The sanitizers look at the library and its tests; the command line was tested above.
build-sanitizers:
	tools/install_packages.sh build test
	cmake --preset asan -DADDEND_APPS=OFF
	cmake --preset tsan -DADDEND_APPS=OFF
	nice -n 19 cmake --build --preset asan -j $(JOBS) -- --quiet
	nice -n 19 cmake --build --preset tsan -j $(JOBS) --target $(TSAN_TESTS) -- --quiet

test-asan: build-sanitizers
	$(call run_tests,asan,-LE 'slow|mpi')

test-tsan: build-sanitizers
	$(call run_tests,tsan,-R '^($(subst $(space),|,$(TSAN_TESTS)))$$')

fuzz:
	tools/install_packages.sh build fuzz
	cmake --preset fuzz -DADDEND_APPS=OFF
	cmake --build --preset fuzz -j $(JOBS)
	tools/run_fuzzers.sh build/fuzz/fuzz $(FUZZ_SECONDS)

# Each mistake of tests/mutants.toml in a copy of the tree (build/mutants): the test that it names must fail.
mutants: python-env
	tools/install_packages.sh build test
	python3 tools/mutants.py -j $(JOBS) $(MUTANTS)

format: python-env
	tools/install_packages.sh test
	clang-format-14 -i $(SOURCES)
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

clean:
	rm -rf build out
