# ngx_deepinfer - `make help` lists what there is to do.
#
# Two builds live here: nginx's own for the module (its configure script and
# makefile, driven from $(BUILD)/nginx), and ours for everything else, which
# takes up sources by wildcard.  Variants (ASan, TSan, fuzzers) are the same
# rules with another BUILD, compiler or flags.

SHELL         := /bin/bash
.DEFAULT_GOAL := all
MAKEFLAGS     += --no-builtin-rules

# ------------------------------------------------------------- settings --

V             ?= 0
BUILD         ?= build
OPT           ?= -O2
SAN           ?=
ifeq ($(origin CC),default)
CC            := cc
endif

PREFIX        ?= /usr
DESTDIR       ?=
NGINX         ?= $(or $(shell PATH="$$PATH:/usr/sbin" command -v nginx),nginx)
NGINX_SRC     ?= /usr/share/nginx/src

PORT          ?= 8080
THREADS       ?=
CACHE         := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ngx_deepinfer
MODEL         ?= $(CACHE)/SmolLM2-135M-Instruct.Q4_1.gguf

# True for the model that we fetch ourselves.
fetched       := $(filter $(CACHE)/%,$(MODEL))

FUZZ_SECONDS  ?= 60
SOAK_SECONDS  ?= 1800
STRUCTURED_N  ?= 1000
CLANG         ?= clang-14
JOBS          ?= $(shell nproc)

WARN          := -Wall -Wextra -Werror
CPPFLAGS      := -D_GNU_SOURCE -I.
CFLAGS        ?=
ALL_CFLAGS    := -std=c17 -g $(OPT) $(WARN) -fPIC -fvisibility=hidden \
                 -ffp-contract=off -pthread $(SAN) $(CFLAGS)
LDLIBS        := -ljansson -lpcre2-8 -lcrypto -lutf8proc -lm -lpthread

# What apt installs: to build and run, for the tests, and for the checks.
DEPS          := gcc libc6-dev make nginx nginx-dev libjansson-dev \
                 libpcre2-dev libhiredis-dev libssl-dev libutf8proc-dev \
                 curl ca-certificates python3 python3-pip
DEPS_TEST     := perl libtest-base-perl libtext-diff-perl python3-venv \
                 redis-server xz-utils zlib1g-dev
DEPS_CHECK    := clang-14 libclang-rt-14-dev cppcheck

# -------------------------------------------------------------- sources --

TOK_SRC       := $(wildcard tokenizer/*.c tokenizer/*/*.c)
IPC_SRC       := $(wildcard engine/ipc/*.c)
KERN_SRC      := $(wildcard kernels/*.c kernels/cpu/*.c)
ENG_SRC       := $(wildcard engine/*.c engine/model/*.c engine/cmd/*.c)
ENG_MAIN      := engine/main.c
ECHO_SRC      := $(wildcard t/echo/*.c)
VECTORS_SRC   := $(wildcard t/vectors/*.c)
UNIT_SRC      := $(wildcard t/unit/*.c)
BENCH_SRC     := $(wildcard t/bench/*.c)
FUZZ_SRC      := $(wildcard t/fuzz/*.c)
MODULE_SRC    := config $(wildcard ngx_deepinfer/*) $(TOK_SRC) $(IPC_SRC) \
                 $(wildcard tokenizer/*.h tokenizer/*/*.h engine/ipc/*.h)

obj            = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
TOK_OBJ       := $(call obj,$(TOK_SRC))
IPC_OBJ       := $(call obj,$(IPC_SRC))
KERN_OBJ      := $(call obj,$(KERN_SRC))
ENG_OBJ       := $(call obj,$(filter-out $(ENG_MAIN),$(ENG_SRC)))
EMULATED      := $(patsubst %.c,$(BUILD)/obj/emulated/%.o, \
                   $(filter %_amx.c,$(KERN_SRC)))
LIB_OBJ       := $(ENG_OBJ) $(KERN_OBJ) $(IPC_OBJ) $(TOK_OBJ)

ENGINE        := $(BUILD)/deepinfer-engine
ECHO          := $(BUILD)/echo-engine
VECTORS       := $(BUILD)/recipe-vectors
MATCH         := $(BUILD)/grammar-match
MODULE        := $(BUILD)/ngx_http_deepinfer_module.so
UNITS_ALL     := $(sort $(notdir $(UNIT_SRC:.c=)) kernels_amx)
UNIT_BIN      := $(addprefix $(BUILD)/unit/,$(UNITS_ALL))
BENCH_BIN     := $(patsubst t/bench/%.c,$(BUILD)/bench/%,$(BENCH_SRC))
FUZZ_BIN      := $(patsubst t/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))

# Under AddressSanitizer: all but one, which computes for minutes what model,
# kernels and gguf_types have gone through.
ASAN_UNITS    := $(filter-out golden,$(UNITS_ALL))

# The unit tests that start threads or share memory between them.  Those of
# the scheduler alone don't; serve has it sample on the model's threads.
TSAN_UNITS    := $(filter ipc% ring% pool% kernels% serve% vocab% work, \
                   $(notdir $(UNIT_SRC:.c=)))

# One short line for each step; V=1 shows the commands.
ifeq ($(V),1)
Q             :=
say            = @:
else
Q             := @
say            = @printf '  %-8s%s\n' $(1) $(2)
endif
submake        = $(MAKE) --no-print-directory

# ----------------------------------------------------------------- goals --

.PHONY: all module help run model deps deps-test deps-check test units http \
        structured soak asan asan-http tsan fuzz lint bench install \
        uninstall clean

all: $(ENGINE) $(ECHO) $(MATCH) module
	@:

module: $(MODULE)
	@:

help:
	@sed -n 's/^#: //p' $(firstword $(MAKEFILE_LIST))

#: make               build the module, the engine and the echo engine
#: make run           install packages, build, fetch a model, serve
#:                      PORT=8080 THREADS=n MODEL=file.gguf
#: make test          unit tests, then everything over HTTP; needs no GPU
#: make units         unit tests only; UNITS="gguf kv" for some of them, with
#:                      _amx behind a name (kernels_amx) on emulated AMX
#: make bench         every figure of docs/performance.md, on this machine;
#:                      PEERS=dir compares, ONLY=ring,codec for some of them
#: make structured    STRUCTURED_N=1000 generations by 50 schemas, expressions
#:                      and grammars for each of four engines, judged
#: make soak          SOAK_SECONDS=1800 of mixed load, engine kills, reloads
#: make asan          unit tests under AddressSanitizer and UBSan
#: make asan-http     TESTS="t/life.t" with engine and module under both
#: make tsan          tests of threads and rings under ThreadSanitizer
#: make fuzz          each fuzzer for FUZZ_SECONDS=60
#: make lint          includes, exported symbols, line lengths, clang, cppcheck
#: make model         fetch the small model into the cache folder
#: make deps          install the packages that build and run need
#:                      (deps-test, deps-check: those of the tests, of lint)
#: make install       into DESTDIR with PREFIX=/usr; make uninstall
#: make clean         remove what was built
#:
#: V=1 shows the commands; BUILD=dir builds elsewhere; JOBS=n limits test runs;
#: NGINX=program NGINX_SRC=dir build for, and test with, another nginx.

run: deps
	@$(submake) -j$(JOBS) all
	@$(if $(fetched),$(submake) model)
	@BUILD='$(BUILD)' NGINX='$(NGINX)' PORT='$(PORT)' MODEL='$(MODEL)' \
	    THREADS='$(THREADS)' conf/run.sh

model:
	@conf/fetch-model.sh '$(CACHE)'

# Only what is missing is installed; nothing missing asks for nothing.
deps:       want := $(DEPS)
deps-test:  want := $(DEPS) $(DEPS_TEST)
deps-check: want := $(DEPS) $(DEPS_TEST) $(DEPS_CHECK)
deps deps-test deps-check:
	@conf/deps.sh $(want)

# The time-out is that of a silent server, on a machine that others overload.
TEST_ENV      := TEST_NGINX_BINARY='$(NGINX)' TEST_NGINX_RANDOMIZE=1 \
                 TEST_NGINX_TIMEOUT=30 \
                 TEST_NGINX_LOAD_MODULES='$(abspath $(MODULE))' \
                 TEST_DEEPINFER_ENGINE='$(abspath $(ENGINE))' \
                 TEST_DEEPINFER_MODEL='$(MODEL)'

# The last lines are prove's own; failed unit tests fail the goal too.
test: deps-test
	@$(submake) -j$(JOBS) all $(UNIT_BIN) $(VECTORS)
	@$(if $(fetched),$(submake) model || echo '  tests that need it skip')
	@t/sdk-venv.sh '$(CACHE)' || echo '  t/sdk.t skips'
	@status=0; \
	TEST_DEEPINFER_MODEL='$(MODEL)' t/unit.sh $(UNIT_BIN) || status=1; \
	$(VECTORS) t/data/recipe/*.jsonl.gz t/data/tokenizer/hf.jsonl.gz \
	    t/data/dialect/prompts.jsonl.gz || status=1; \
	$(submake) http || status=1; \
	exit $$status

TESTS         ?= -r t
http:
	@$(TEST_ENV) $(if $(SAN),$(SAN_ENV)) prove -It/lib $(TESTS)

structured: deps-test
	@$(submake) -j$(JOBS) all $(if $(fetched),model)
	@t/sdk-venv.sh '$(CACHE)'
	@$(TEST_ENV) STRUCTURED_N=$(STRUCTURED_N) \
	    prove -v -It/lib t/structured-many.t

soak: deps-test
	@$(submake) -j$(JOBS) all $(if $(fetched),model)
	@$(TEST_ENV) SOAK_SECONDS=$(SOAK_SECONDS) prove -v -It/lib t/soak.t

UNITS         ?= $(UNITS_ALL)
units: $(ECHO) $(addprefix $(BUILD)/unit/,$(UNITS))
	@t/unit.sh $(filter $(BUILD)/unit/%,$^)

ASAN          := $(submake) BUILD=build-asan OPT=-O1 \
                 SAN='-fsanitize=address,undefined -fno-sanitize-recover=all \
                 -fno-omit-frame-pointer'

asan:
	@$(ASAN) -j$(JOBS) units UNITS='$(ASAN_UNITS)'

# nginx itself is not built with it, so it has to preload the run-time.  Pools
# at its end are no leaks; what was freed is not kept for long, for the tests
# that weigh a worker.
ABORT         := abort_on_error=1:print_stacktrace=1
SAN_ENV       := TEST_NGINX_LD_PRELOAD="$$($(CC) -print-file-name=libasan.so)" \
                 ASAN_OPTIONS=$(ABORT):detect_leaks=0:quarantine_size_mb=1 \
                 UBSAN_OPTIONS=$(ABORT)

asan-http: deps-test
	@$(ASAN) -j$(JOBS) all
	@$(ASAN) http TESTS='$(TESTS)'

tsan:
	@$(submake) -j$(JOBS) units BUILD=build-tsan OPT=-O1 UNITS='$(TSAN_UNITS)' \
	    SAN='-fsanitize=thread'

fuzz: deps-check
	@$(submake) -j$(JOBS) fuzz-run BUILD=build-fuzz CC=$(CLANG) OPT=-O1 \
	    SAN='-fsanitize=address,undefined -fno-sanitize-recover=all'

.PHONY: fuzz-run
fuzz-run: $(FUZZ_BIN)
	@t/fuzz.sh $(FUZZ_SECONDS) $^

lint: deps-check
	@$(submake) module
	@CLANG=$(CLANG) MODULE='$(MODULE)' t/lint.sh

bench: all $(BENCH_BIN) $(if $(fetched),model)
	@python3 t/bench/bench.py --build $(BUILD) --model '$(MODEL)' \
	    $(if $(PEERS),--peers '$(PEERS)') $(if $(ONLY),--only '$(ONLY)')

clean:
	rm -rf build build-asan build-tsan build-fuzz build-clang run

# ------------------------------------------------------------ our build --

# Vector variants carry their own flags, chosen by the file's suffix.
AVX2          := -mavx2 -mfma -mf16c
AVX512        := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq \
                 -mavx512vnni -mavx512vbmi -mprfchw
AVX512BF16    := $(AVX512) -mavx512bf16
AMX           := $(AVX512BF16) -mamx-tile -mamx-int8 -mamx-bf16
$(BUILD)/obj/kernels/%_avx2.o:   VEC := $(AVX2)
$(BUILD)/obj/kernels/%_avxvnni.o: VEC := $(AVX2) -mavxvnni
$(BUILD)/obj/kernels/%_avx512.o: VEC := $(AVX512)
$(BUILD)/obj/kernels/%_avx512bf16.o: VEC := $(AVX512BF16)
$(BUILD)/obj/kernels/%_amx.o:    VEC := $(AMX)
# These are all unrolled: at -O1, or instrumented, each takes minutes.  The
# unit test's guard bytes watch what they write.
$(BUILD)/obj/kernels/cpu/matmul_q8_%.o: VEC += -O2 -fno-sanitize=all
$(BUILD)/obj/kernels/cpu/matmul_mx_%.o: VEC += -O2 -fno-sanitize=all
$(BUILD)/obj/emulated/kernels/%_amx.o: VEC := $(AVX512BF16)
$(BUILD)/obj/emulated/kernels/cpu/matmul_mx_%.o: VEC += -O2 -fno-sanitize=all
$(BUILD)/obj/t/emulated/amx.o:   VEC := $(AVX512)
# What only other CPUs run is nothing that a fuzzer needs to see into.
ifneq ($(findstring build-fuzz,$(BUILD)),)
PLAIN         := $(foreach isa,avxvnni avx512 avx512bf16 amx, \
                   $(filter %_$(isa).o,$(call obj,$(KERN_SRC)))) \
                 $(filter %/matmul_q8_avx2.o %/matmul_mx_avx2.o, \
                   $(call obj,$(KERN_SRC)))
$(PLAIN): override CC  := cc
$(PLAIN): override SAN :=
$(PLAIN): FUZZ_FLAGS   :=
endif

# libFuzzer instruments everything and brings main() to the target alone.
FUZZ_FLAGS    := $(if $(findstring build-fuzz,$(BUILD)),-fsanitize=fuzzer-no-link)

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(FUZZ_FLAGS) $(VEC) $(CPPFLAGS) -MMD -MP \
	    -c -o $@ $<

# The AMX kernels, and a test, with tiles in software.
$(BUILD)/obj/emulated/%.o: %.c
	@mkdir -p $(@D)
	$(call say,EMULATE,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(VEC) $(CPPFLAGS) -include t/emulated/amx.h \
	    -MMD -MP -c -o $@ $<

define link
@mkdir -p $(@D)
$(call say,LINK,$@)
$(Q)$(CC) $(ALL_CFLAGS) $(1) -o $@ $(filter %.o,$^) $(LDLIBS)
endef

$(ENGINE): $(call obj,$(ENG_MAIN)) $(LIB_OBJ)
	$(call link)

$(ECHO): $(call obj,$(ECHO_SRC)) $(IPC_OBJ) $(TOK_OBJ)
	$(call link)

$(VECTORS): LDLIBS += -lz
$(VECTORS): $(call obj,$(VECTORS_SRC)) $(TOK_OBJ)
	$(call link)

$(MATCH): $(call obj,t/grammar/match.c) $(TOK_OBJ)
	$(call link)

$(BUILD)/unit/%: $(BUILD)/obj/t/unit/%.o $(LIB_OBJ)
	$(call link)

# Any unit test where AMX is emulated: build/unit/golden_amx, say.
$(BUILD)/unit/%_amx: $(BUILD)/obj/emulated/t/unit/%.o \
                     $(BUILD)/obj/t/emulated/amx.o $(EMULATED) \
                     $(filter-out %_amx.o,$(LIB_OBJ))
	$(call link)

$(BUILD)/bench/%: $(BUILD)/obj/t/bench/%.o $(LIB_OBJ)
	$(call link)

# Foreign bytes come in through the codec and the channel; some are models.
$(BUILD)/fuzz/model $(BUILD)/fuzz/safetensors: $(ENG_OBJ) $(KERN_OBJ)
$(BUILD)/fuzz/%: $(BUILD)/obj/t/fuzz/%.o $(TOK_OBJ) $(IPC_OBJ)
	$(call link,-fsanitize=fuzzer)

.SECONDARY:
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

# ---------------------------------------------------------- nginx's build --

# configure runs again when `config`, a folder's list of files, or the
# installed nginx changes; a module fits only the nginx it was built for.
# Debian's sources come with the flags of its build (conf_flags); others are
# configured with those that nginx itself tells, but for its other modules.
NGX           := $(BUILD)/nginx
NGX_STAMP     := $(shell { "$(NGINX)" -V 2>&1; \
                     echo $(NGINX_SRC) $(sort $(MODULE_SRC)); } | cksum)
ifneq ($(NGX_STAMP),$(shell cat $(NGX)/stamp 2>/dev/null))
.PHONY: $(NGX)/Makefile
endif

# Two makes at a time would write over each other's files.
NGX_LOCK      := exec 9> $(NGX)/lock; flock 9;

$(NGX)/Makefile: config
	$(call say,CONF,$(NGX))
	@mkdir -p $(NGX)
	@$(NGX_LOCK) \
	here=$$PWD; cd $(NGINX_SRC) && \
	if [ -f conf_flags ]; then . ./conf_flags; else \
	    eval "NGX_CONF_FLAGS=($$("$(NGINX)" -V 2>&1 | sed -nE \
	        -e 's/--(add(-dynamic)?-module|builddir)=[^ ]*//g' \
	        -e 's/^configure arguments: //p'))"; \
	fi && \
	./configure --with-cc-opt='-g -O2 -fPIC -D_GNU_SOURCE $(SAN)' \
	    --with-ld-opt='-Wl,-z,relro -Wl,-z,now -fPIC $(SAN)' \
	    "$${NGX_CONF_FLAGS[@]}" --add-dynamic-module="$$here" \
	    --builddir="$$here/$(NGX)" > "$$here/$(NGX)/configure.log" 2>&1 \
	|| { tail -n 20 "$$here/$(NGX)/configure.log"; exit 1; }
	@echo '$(NGX_STAMP)' > $(NGX)/stamp

# nginx's makefile writes a compiler line as two: the second is the source.
# A running nginx has the old file mapped, so the new one takes its name.
$(MODULE): $(NGX)/Makefile $(MODULE_SRC)
	@$(NGX_LOCK) \
	set -o pipefail; here=$$PWD; \
	$(MAKE) --no-print-directory -C $(NGINX_SRC) \
	    -f "$$here/$(NGX)/Makefile" modules 2>&1 | \
	if [ '$(V)' = 1 ]; then cat; else \
	    sed -n -e "s|^\t*$$here/\(.*\.c\)$$|  CC      \1|p" \
	        -e '/\(error\|warning\|note\):/p' -e '/\*\*\*/p'; \
	fi && \
	install -m 755 $(NGX)/$(notdir $@) $@.new && mv -f $@.new $@
	$(call say,LINK,$@)

# -------------------------------------------------------------- install --

MODULES_DIR   := $(DESTDIR)$(PREFIX)/lib/nginx/modules
AVAILABLE_DIR := $(DESTDIR)$(PREFIX)/share/nginx/modules-available
EXAMPLES_DIR  := $(DESTDIR)$(PREFIX)/share/doc/ngx_deepinfer/examples
UNITS_DIR     := $(DESTDIR)$(PREFIX)/lib/systemd/system
MAN_DIR       := $(DESTDIR)$(PREFIX)/share/man

install: all
	install -D -m 644 $(MODULE) $(MODULES_DIR)/$(notdir $(MODULE))
	install -D -m 644 conf/mod-http-deepinfer.conf \
	    $(AVAILABLE_DIR)/mod-http-deepinfer.conf
	install -D -m 755 $(ENGINE) $(DESTDIR)$(PREFIX)/bin/deepinfer-engine
	install -D -m 644 -t $(EXAMPLES_DIR) conf/nginx.conf
	install -D -m 644 -t $(UNITS_DIR) conf/systemd/deepinfer-engine@.service
	install -D -m 644 -t $(EXAMPLES_DIR) conf/systemd/engine.conf
	install -D -m 644 -t $(MAN_DIR)/man8 docs/man/deepinfer-engine.8
	install -D -m 644 -t $(MAN_DIR)/man5 docs/man/ngx_deepinfer.5

uninstall:
	rm -f $(MODULES_DIR)/$(notdir $(MODULE)) \
	    $(AVAILABLE_DIR)/mod-http-deepinfer.conf \
	    $(DESTDIR)$(PREFIX)/bin/deepinfer-engine \
	    $(UNITS_DIR)/deepinfer-engine@.service \
	    $(MAN_DIR)/man8/deepinfer-engine.8 $(MAN_DIR)/man5/ngx_deepinfer.5
	rm -rf $(DESTDIR)$(PREFIX)/share/doc/ngx_deepinfer
