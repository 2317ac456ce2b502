# ngx_deepinfer - see `make help`.

SHELL       := /bin/bash
.DEFAULT_GOAL := all
MAKEFLAGS   += --no-builtin-rules

CC          ?= cc
ifeq ($(origin CC),default)
CC          := cc
endif
BUILD       ?= build
OPT         ?= -O2
SAN         ?=
WARN        := -Wall -Wextra -Werror
CPPFLAGS    := -D_GNU_SOURCE -I.
CFLAGS      ?=
ALL_CFLAGS  := -std=c17 -g $(OPT) $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off \
               -pthread $(SAN) $(CFLAGS)
LDLIBS      := -ljansson -lpcre2-8 -lcrypto -lutf8proc -lxxhash -lm -lpthread

TOK_SRC     := $(wildcard tokenizer/*.c tokenizer/*/*.c)
VOCAB_SRC   := $(wildcard tokenizer/vocab/*.c)
IPC_SRC     := $(wildcard engine/ipc/*.c)
KERN_SRC    := $(wildcard kernels/*.c kernels/cpu/*.c)
ENG_SRC     := $(wildcard engine/*.c engine/model/*.c engine/cmd/*.c)
ENG_MAIN    := engine/main.c
ECHO_SRC    := $(wildcard t/echo/*.c)
UNIT_SRC    := $(wildcard t/unit/*.c)
BENCH_SRC   := $(wildcard t/bench/*.c)
FUZZ_SRC    := $(wildcard t/fuzz/*.c)

obj          = $(patsubst %.c,$(BUILD)/obj/%.o,$(1))
TOK_OBJ     := $(call obj,$(TOK_SRC))
IPC_OBJ     := $(call obj,$(IPC_SRC))
KERN_OBJ    := $(call obj,$(KERN_SRC))
ENG_OBJ     := $(call obj,$(filter-out $(ENG_MAIN),$(ENG_SRC)))
LIB_OBJ     := $(ENG_OBJ) $(KERN_OBJ) $(IPC_OBJ) $(TOK_OBJ)

UNIT_BIN    := $(patsubst t/unit/%.c,$(BUILD)/unit/%,$(UNIT_SRC))
BENCH_BIN   := $(patsubst t/bench/%.c,$(BUILD)/bench/%,$(BENCH_SRC))
FUZZ_BIN    := $(patsubst t/fuzz/%.c,$(BUILD)/fuzz/%,$(FUZZ_SRC))

.PHONY: all help clean
all: $(BUILD)/deepinfer-engine $(BUILD)/echo-engine

# Vector variants carry their own flags, chosen by the file's suffix.
$(BUILD)/obj/kernels/%_avx2.o:   VEC := -mavx2 -mfma -mf16c
$(BUILD)/obj/kernels/%_avx512.o: VEC := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi -mavx2 -mfma -mf16c
$(BUILD)/obj/kernels/%_amx.o:    VEC := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16 -mavx2 -mfma -mf16c

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(VEC) $(CPPFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/deepinfer-engine: $(call obj,$(ENG_MAIN)) $(LIB_OBJ)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/echo-engine: $(call obj,$(ECHO_SRC)) $(IPC_OBJ) $(TOK_OBJ)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/unit/%: $(BUILD)/obj/t/unit/%.o $(LIB_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/bench/%: $(BUILD)/obj/t/bench/%.o $(LIB_OBJ)
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) -o $@ $^ $(LDLIBS)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

clean:
	rm -rf $(BUILD)
