/* Continues prompts with a compiled package through the C interface, and compares tokens and logits with those that
 * the model is known to give (tests/data/novelist/golden.json, turned into plain numbers by golden_numbers.cpp).
 *
 *     novelist PACKAGE GOLDEN_NUMBERS [host|cuda]
 *
 * The lines between the README marks are the README's example; tests/scripts/readme holds the two in step. */
#include <mkrt/mkrt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Logits are sums of 256 products of bf16 weights with f32 activations, and pass an f16 cache: other orders of summing
 * move them by a few thousandths. Two candidates that are closer than this may swap. */
static const float kTolerance = 0.02F;
enum { TOP = 5 };

/* Leaves the function with the status of a call that failed. */
#define TRY(call)                                 \
  do {                                            \
    const mkrt_status try_status = (call);        \
    if (try_status != MKRT_OK) return try_status; \
  } while (0)

typedef struct model {
  mkrt_runtime* runtime;
  mkrt_mesh* mesh;
  mkrt_program* program;
  mkrt_executable* executable;
  mkrt_session* session;
} model;

static mkrt_status model_open(model* m, const char* path, const mkrt_mesh_desc* devices, mkrt_error* error) {
  const mkrt_program_desc package = {.struct_size = sizeof package, .path = path};
  /* README begin */
  TRY(mkrt_runtime_create(NULL, &m->runtime, error));
  TRY(mkrt_mesh_create(m->runtime, devices, &m->mesh, error)); /* NULL: the first GPU, else this processor */
  TRY(mkrt_program_load(m->runtime, &package, &m->program, error));
  TRY(mkrt_executable_create(m->program, m->mesh, NULL, &m->executable, error));
  TRY(mkrt_session_create(m->executable, &m->session, error));
  /* README end */
  return MKRT_OK;
}

static void model_close(model* m) {
  mkrt_session_destroy(m->session);
  mkrt_executable_destroy(m->executable);
  mkrt_program_destroy(m->program);
  mkrt_mesh_destroy(m->mesh);
  mkrt_runtime_destroy(m->runtime);
}

/* Writes the first `count` elements of an i32 tensor. */
static mkrt_status put(model* m, const char* name, const int32_t* values, uint32_t count, mkrt_error* error) {
  uint32_t tensor = 0;
  TRY(mkrt_program_find_tensor(m->program, name, &tensor, error));
  return mkrt_session_write(m->session, 0, tensor, 0, values, count * sizeof *values, error);
}

/* Reads the first `count` elements, four bytes each, of a tensor. */
static mkrt_status get(model* m, const char* name, uint32_t count, void* out_values, mkrt_error* error) {
  uint32_t tensor = 0;
  TRY(mkrt_program_find_tensor(m->program, name, &tensor, error));
  return mkrt_session_read(m->session, 0, tensor, 0, count * sizeof(int32_t), out_values, error);
}

/* Lets the model continue `length` tokens by `more` greedy ones; `out_list` gets all of them. */
static mkrt_status model_continue(model* m, const int32_t* prompt, int32_t length, int32_t more, int32_t* out_list,
                                  mkrt_error* error) {
  const int32_t on = 1;
  const uint32_t total = (uint32_t)(length + more);
  mkrt_execute_desc steps = {.struct_size = sizeof steps, .step_count = total - 1};
  uint64_t done = 0;
  TRY(mkrt_session_reset(m->session, error));
  TRY(mkrt_program_find_entry(m->program, "decode", &steps.entry, error));
  /* README begin */
  TRY(put(m, "tokens", prompt, (uint32_t)length, error));
  TRY(put(m, "prompt_length", &length, 1, error));
  TRY(put(m, "active", &on, 1, error));
  TRY(mkrt_execute(m->session, &steps, &done, error)); /* one launch for all tokens; returns at once */
  TRY(mkrt_session_wait(m->session, done, UINT64_MAX, error));
  TRY(get(m, "tokens", total, out_list, error));
  /* README end */
  return MKRT_OK;
}

/* One token list with what the model is known to answer. */
typedef struct golden_case {
  int32_t prompt_length;
  int32_t more;
  int32_t* list;     /* [prompt_length + more] */
  int32_t* top_ids;  /* [more][TOP], the largest first */
  float* top_logits; /* [more][TOP] */
} golden_case;

typedef struct golden {
  int32_t case_count;
  golden_case* cases;
  int32_t full_length;
  int32_t vocabulary;
  int32_t* full_list; /* [full_length] */
  float* full_logits; /* [full_length][vocabulary] */
} golden;

static void give_up(const char* what) {
  fprintf(stderr, "novelist: %s\n", what);
  exit(2);
}

static int32_t read_count(FILE* file) {
  int32_t count = 0;
  if (fscanf(file, "%d", &count) != 1 || count < 1 || count > 1000000) give_up("the golden numbers have a bad count");
  return count;
}

static void* allocate(size_t count, size_t size) {
  void* memory = calloc(count, size);
  if (memory == NULL) give_up("out of memory");
  return memory;
}

static int32_t* read_integers(FILE* file, int32_t count) {
  int32_t* values = allocate((size_t)count, sizeof *values);
  for (int32_t i = 0; i < count; ++i) {
    if (fscanf(file, "%d", &values[i]) != 1) give_up("the golden numbers end early");
  }
  return values;
}

static float* read_floats(FILE* file, int32_t count) {
  float* values = allocate((size_t)count, sizeof *values);
  for (int32_t i = 0; i < count; ++i) {
    if (fscanf(file, "%f", &values[i]) != 1) give_up("the golden numbers end early");
  }
  return values;
}

static golden read_golden(const char* path) {
  golden g = {0};
  FILE* file = fopen(path, "r");
  if (file == NULL) give_up("cannot open the golden numbers");
  g.case_count = read_count(file);
  g.cases = allocate((size_t)g.case_count, sizeof *g.cases);
  for (golden_case* c = g.cases; c != g.cases + g.case_count; ++c) {
    c->prompt_length = read_count(file);
    c->more = read_count(file);
    c->list = read_integers(file, c->prompt_length + c->more);
    c->top_ids = read_integers(file, c->more * TOP);
    c->top_logits = read_floats(file, c->more * TOP);
  }
  g.full_length = read_count(file);
  g.vocabulary = read_count(file);
  g.full_list = read_integers(file, g.full_length);
  g.full_logits = read_floats(file, g.full_length * g.vocabulary);
  fclose(file);
  return g;
}

static void free_golden(golden* g) {
  for (int32_t i = 0; i < g->case_count; ++i) {
    free(g->cases[i].list);
    free(g->cases[i].top_ids);
    free(g->cases[i].top_logits);
  }
  free(g->cases);
  free(g->full_list);
  free(g->full_logits);
}

/* What was compared, and how it came out. */
typedef struct result {
  int32_t tokens;
  int32_t logits;
  int32_t wrong;
  float largest_difference;
} result;

static void compare_logit(result* r, float value, float expected) {
  const float difference = value > expected ? value - expected : expected - value;
  ++r->logits;
  if (difference > r->largest_difference) r->largest_difference = difference;
  if (!(difference <= kTolerance)) ++r->wrong; /* NaN is wrong too */
}

static void compare_token(result* r, int32_t value, int32_t expected, const char* what, int32_t step) {
  ++r->tokens;
  if (value == expected) return;
  ++r->wrong;
  fprintf(stderr, "novelist: %s, token %d: %d instead of %d\n", what, step, value, expected);
}

static int is_close_call(const golden_case* c, int32_t step) {
  const float* top = c->top_logits + (ptrdiff_t)step * TOP;
  return top[0] - top[1] <= kTolerance;
}

/* The model's own continuation, up to the first difference that rounding explains: after it the texts part. */
static mkrt_status check_continuation(model* m, const golden_case* c, result* r, mkrt_error* error) {
  const int32_t total = c->prompt_length + c->more;
  int32_t* list = allocate((size_t)total, sizeof *list);
  const mkrt_status status = model_continue(m, c->list, c->prompt_length, c->more, list, error);
  for (int32_t step = 0; status == MKRT_OK && step < c->more; ++step) {
    const int32_t place = c->prompt_length + step;
    if (list[place] != c->list[place] && is_close_call(c, step)) break;
    compare_token(r, list[place], c->list[place], "continuation", step);
  }
  free(list);
  return status;
}

/* Starts a list that the model only reads, and gives its logits step by step. */
static mkrt_status start_reading(model* m, const int32_t* list, int32_t length, mkrt_error* error) {
  const int32_t on = 1;
  TRY(mkrt_session_reset(m->session, error));
  TRY(put(m, "tokens", list, (uint32_t)length, error));
  TRY(put(m, "prompt_length", &length, 1, error));
  return put(m, "active", &on, 1, error);
}

static mkrt_status read_step(model* m, float* out_logits, int32_t vocabulary, mkrt_error* error) {
  mkrt_execute_desc step = {.struct_size = sizeof step, .step_count = 1};
  uint64_t done = 0;
  TRY(mkrt_program_find_entry(m->program, "decode", &step.entry, error));
  TRY(mkrt_execute(m->session, &step, &done, error));
  TRY(mkrt_session_wait(m->session, done, UINT64_MAX, error));
  return get(m, "logits", (uint32_t)vocabulary, out_logits, error);
}

static int32_t largest(const float* values, int32_t count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

/* The logits of every step, with the known text given. */
static mkrt_status check_logits(model* m, const golden_case* c, float* logits, int32_t vocabulary, result* r,
                                mkrt_error* error) {
  TRY(start_reading(m, c->list, c->prompt_length + c->more, error));
  for (int32_t position = 0; position < c->prompt_length + c->more - 1; ++position) {
    const int32_t step = position - (c->prompt_length - 1);
    TRY(read_step(m, logits, vocabulary, error));
    if (step < 0) continue;
    for (int32_t i = step * TOP; i < (step + 1) * TOP; ++i) compare_logit(r, logits[c->top_ids[i]], c->top_logits[i]);
    if (!is_close_call(c, step)) {
      compare_token(r, largest(logits, vocabulary), c->list[position + 1], "largest logit", step);
    }
  }
  return MKRT_OK;
}

static mkrt_status check_full_logits(model* m, const golden* g, float* logits, result* r, mkrt_error* error) {
  TRY(start_reading(m, g->full_list, g->full_length, error));
  for (int32_t position = 0; position < g->full_length; ++position) {
    TRY(read_step(m, logits, g->vocabulary, error));
    for (int32_t i = 0; i < g->vocabulary; ++i) {
      compare_logit(r, logits[i], g->full_logits[(ptrdiff_t)position * g->vocabulary + i]);
    }
  }
  return MKRT_OK;
}

static mkrt_status check_all(model* m, const golden* g, float* logits, result* r, mkrt_error* error) {
  for (const golden_case* c = g->cases; c != g->cases + g->case_count; ++c) {
    TRY(check_continuation(m, c, r, error));
    TRY(check_logits(m, c, logits, g->vocabulary, r, error));
  }
  return check_full_logits(m, g, logits, r, error);
}

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) give_up("usage: novelist PACKAGE GOLDEN_NUMBERS [host|cuda]");
  const int on_host = argc == 4 && strcmp(argv[3], "host") == 0;
  const mkrt_rank_desc rank = {.struct_size = sizeof rank, .kind = on_host ? MKRT_DEVICE_HOST : MKRT_DEVICE_CUDA};
  const mkrt_mesh_desc devices = {.struct_size = sizeof devices, .rank_count = 1, .ranks = &rank};
  golden g = read_golden(argv[2]);
  float* logits = allocate((size_t)g.vocabulary, sizeof *logits);
  model m = {0};
  mkrt_error error = MKRT_ERROR_INIT;
  result r = {0};

  mkrt_status status = model_open(&m, argv[1], argc == 4 ? &devices : NULL, &error);
  if (status == MKRT_OK) status = check_all(&m, &g, logits, &r, &error);
  model_close(&m);
  free(logits);
  free_golden(&g);
  if (status != MKRT_OK) {
    fprintf(stderr, "novelist: %s: %s\n", mkrt_status_name(status), error.message);
    return 1;
  }
  printf("%d tokens and %d logits compared, largest difference %.5f, %d wrong\n", r.tokens, r.logits,
         (double)r.largest_difference, r.wrong);
  return r.wrong != 0;
}
