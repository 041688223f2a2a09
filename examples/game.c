/* A character of a game that speaks, and the editor that plays the level again and again.
 *
 * SPDX-License-Identifier: MIT
 *
 *     example_game LIBRARY PACKAGE [LEVELS] [FRAMES_PER_SECOND]
 *
 * The game loads a copy of LIBRARY when a level starts, as editors do so that the file can be built anew meanwhile;
 * executes one step of the model for a word, and asks once a frame whether it is there: no frame waits for it; and
 * unloads the library when the level ends. After the last level, nothing may have grown: memory, threads, files.
 * For systems with dlopen and /proc.
 */
#define _GNU_SOURCE /* dladdr, mkstemp */
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <mkrt/mkrt.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "vocabulary.h"

/* Leaves the function with the status of a call that failed. */
#define TRY(call)                                 \
  do {                                            \
    const mkrt_status try_status = (call);        \
    if (try_status != MKRT_OK) return try_status; \
  } while (0)

/* ---- The library --------------------------------------------------------------------------------------------------*/

/* What this game calls. */
#define FUNCTIONS(X)          \
  X(mkrt_status_name)         \
  X(mkrt_version)             \
  X(mkrt_runtime_create)      \
  X(mkrt_runtime_destroy)     \
  X(mkrt_mesh_create)         \
  X(mkrt_mesh_destroy)        \
  X(mkrt_program_load)        \
  X(mkrt_program_destroy)     \
  X(mkrt_program_find_entry)  \
  X(mkrt_program_find_tensor) \
  X(mkrt_program_tensor_info) \
  X(mkrt_executable_create)   \
  X(mkrt_executable_destroy)  \
  X(mkrt_session_create)      \
  X(mkrt_session_destroy)     \
  X(mkrt_session_write)       \
  X(mkrt_session_read)        \
  X(mkrt_session_query)       \
  X(mkrt_execute)

typedef struct library {
  void* handle;
#define MEMBER(name) __typeof__(name)* name;
  FUNCTIONS(MEMBER)
#undef MEMBER
} library;

/* Copies a file under a name of its own, "mkrt-XXXXXX" in the working folder, which `copy` becomes. */
static int copy_file(const char* from, char copy[16]) {
  static char block[1 << 16]; /* the editor loads one at a time */
  const int in = open(from, O_RDONLY | O_CLOEXEC);
  int out = -1, good = in >= 0;
  ssize_t size = 1;
  snprintf(copy, 16, "./mkrt-XXXXXX");
  if (good) out = mkstemp(copy);
  good = out >= 0;
  while (good && size > 0) {
    size = read(in, block, sizeof block);
    good = size >= 0 && write(out, block, (size_t)size) == size;
  }
  if (in >= 0) close(in);
  if (out >= 0) close(out);
  return good;
}

/* Loads a copy of the library at `path`; 0 with a line on standard error where that fails. */
static int library_load(library* l, const char* path) {
  char copy[16];
  Dl_info place;
  int good = copy_file(path, copy);
  if (!good) fprintf(stderr, "cannot copy %s\n", path);
  l->handle = good ? dlopen(copy, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (good && l->handle == NULL) fprintf(stderr, "%s\n", dlerror());
  good = l->handle != NULL;
#define FIND(name) good = good && (*(void**)(&l->name) = dlsym(l->handle, #name)) != NULL;
  FUNCTIONS(FIND)
#undef FIND
  /* Minor versions add; what this game was compiled with must be there. */
  good = good && l->mkrt_version() >= MKRT_VERSION && l->mkrt_version() / 1000000 == MKRT_VERSION / 1000000;
  /* The copy, not a library that somebody else has loaded before. */
  good = good && dladdr(*(void**)&l->mkrt_version, &place) != 0 && strcmp(place.dli_fname, copy) == 0;
  unlink(copy);
  if (l->handle != NULL && !good) {
    fprintf(stderr, "%s is not the library that this game was built for\n", path);
    dlclose(l->handle);
  }
  return good;
}

/* ---- The engine's memory ------------------------------------------------------------------------------------------*/

static atomic_size_t engine_bytes; /* that the library has of the engine */

static void* engine_allocate(void* user_data, size_t size, size_t alignment) {
  void* memory = NULL;
  (void)user_data;
  if (posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, size) != 0) return NULL;
  atomic_fetch_add(&engine_bytes, size);
  return memory;
}

static void engine_release(void* user_data, void* memory, size_t size, size_t alignment) {
  (void)user_data;
  (void)alignment;
  atomic_fetch_sub(&engine_bytes, size);
  free(memory);
}

static void engine_log(void* user_data, uint32_t level, const char* message) {
  (void)user_data;
  (void)level;
  fprintf(stderr, "mkrt: %s\n", message);
}

/* ---- The character ------------------------------------------------------------------------------------------------*/

/* Of what a character says; its prompt and words must fit the model's context. */
enum { MAX_WORDS = 64 };

typedef struct character {
  library mkrt;
  mkrt_runtime* runtime;
  mkrt_mesh* mesh;
  mkrt_program* program;
  mkrt_executable* executable;
  mkrt_session* session;
  vocabulary words;
  uint32_t entry, tokens; /* indices */
  uint32_t length;        /* tokens that are there and said */
  uint32_t goal;          /* tokens in the end */
  uint64_t asked;         /* value of the timeline at which the next token is there */
} character;

static mkrt_status put(character* c, const char* name, const int32_t* values, uint32_t count, mkrt_error* error) {
  uint32_t tensor = 0;
  TRY(c->mkrt.mkrt_program_find_tensor(c->program, name, &tensor, error));
  return c->mkrt.mkrt_session_write(c->session, 0, tensor, 0, values, count * sizeof *values, error);
}

/* Asks for what the next `steps` steps write, and returns at once. */
static mkrt_status ask(character* c, uint32_t steps, mkrt_error* error) {
  const mkrt_execute_desc desc = {.struct_size = sizeof desc, .entry = c->entry, .step_count = steps};
  return c->mkrt.mkrt_execute(c->session, &desc, &c->asked, error);
}

static mkrt_status character_load(character* c, const char* package, mkrt_error* error) {
  const mkrt_runtime_desc hooks = {
      .struct_size = sizeof hooks, .allocate = engine_allocate, .release = engine_release, .log = engine_log};
  /* Two threads of the processor, the rest is the game's. MKRT_DEVICE_DEFAULT would take a GPU. */
  const mkrt_rank_desc rank = {.struct_size = sizeof rank, .kind = MKRT_DEVICE_HOST, .worker_count = 2};
  const mkrt_mesh_desc devices = {.struct_size = sizeof devices, .rank_count = 1, .ranks = &rank};
  const mkrt_program_desc model = {.struct_size = sizeof model, .path = package};
  TRY(c->mkrt.mkrt_runtime_create(&hooks, &c->runtime, error));
  TRY(c->mkrt.mkrt_mesh_create(c->runtime, &devices, &c->mesh, error));
  TRY(c->mkrt.mkrt_program_load(c->runtime, &model, &c->program, error));
  TRY(c->mkrt.mkrt_program_find_entry(c->program, "decode", &c->entry, error));
  TRY(c->mkrt.mkrt_program_find_tensor(c->program, "tokens", &c->tokens, error));
  TRY(c->mkrt.mkrt_executable_create(c->program, c->mesh, NULL, &c->executable, error));
  return c->mkrt.mkrt_session_create(c->executable, &c->session, error);
}

/* Gives the character its first words, and asks for the one that follows. */
static mkrt_status character_begin(character* c, const char* package, const char* prompt, mkrt_error* error) {
  const int32_t on = 1;
  int32_t list[MAX_WORDS], length;
  uint32_t tensor = 0;
  mkrt_tensor_info logits = {.struct_size = sizeof logits};
  TRY(c->mkrt.mkrt_program_find_tensor(c->program, "logits", &tensor, error));
  TRY(c->mkrt.mkrt_program_tensor_info(c->program, tensor, &logits, error));
  if (!vocabulary_load(&c->words, package, (uint32_t)logits.shape[1])) fprintf(stderr, "no vocabulary\n");
  c->length = vocabulary_cut(&c->words, prompt, list, MAX_WORDS / 2);
  if (c->length == 0) list[c->length++] = 0;
  length = (int32_t)c->length;
  TRY(put(c, "tokens", list, c->length, error));
  TRY(put(c, "prompt_length", &length, 1, error));
  TRY(put(c, "active", &on, 1, error));
  vocabulary_print(&c->words, list, c->length);
  return ask(c, c->length, error);
}

/* Called once a frame; never waits. */
static mkrt_status character_frame(character* c, mkrt_error* error) {
  uint64_t reached = 0;
  int32_t word = 0;
  TRY(c->mkrt.mkrt_session_query(c->session, &reached, error));
  if (reached < c->asked) return MKRT_OK; /* still thinking: this frame shows what the last one did */
  TRY(c->mkrt.mkrt_session_read(c->session, 0, c->tokens, c->length * sizeof word, sizeof word, &word, error));
  vocabulary_print(&c->words, &word, 1);
  ++c->length;
  return c->length < c->goal ? ask(c, 1, error) : MKRT_OK;
}

/* Whatever of it there is. A session that still thinks is cancelled by its destruction. */
static void character_unload(character* c) {
  c->mkrt.mkrt_session_destroy(c->session);
  c->mkrt.mkrt_executable_destroy(c->executable);
  c->mkrt.mkrt_program_destroy(c->program);
  c->mkrt.mkrt_mesh_destroy(c->mesh);
  c->mkrt.mkrt_runtime_destroy(c->runtime);
  vocabulary_free(&c->words);
}

/* ---- The editor ---------------------------------------------------------------------------------------------------*/

typedef struct settings {
  const char* library;
  const char* package;
  long levels;
  long frames_per_second;
} settings;

static double now(void) { /* seconds */
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Draws frames until the character has said `goal` words. The longest of its calls goes to `longest`. */
static mkrt_status play(character* c, long frames_per_second, double* longest, mkrt_error* error) {
  const struct timespec frame = {.tv_sec = 1 / frames_per_second,
                                 .tv_nsec = frames_per_second == 1 ? 0 : 1000000000L / frames_per_second};
  while (c->length < c->goal) {
    const double begin = now();
    const mkrt_status status = character_frame(c, error);
    const double taken = now() - begin;
    if (taken > *longest) *longest = taken;
    if (status != MKRT_OK) return status;
    nanosleep(&frame, NULL); /* here the game computes and draws */
  }
  return MKRT_OK;
}

/* Plays level `number`, and 0 if something failed. In every second one the player leaves while the character thinks. */
static int level(const settings* s, long number, double* longest) {
  character c = {0};
  mkrt_error error = MKRT_ERROR_INIT;
  mkrt_status status;
  if (!library_load(&c.mkrt, s->library)) return 0;
  status = character_load(&c, s->package, &error);
  if (status == MKRT_OK) status = character_begin(&c, s->package, "The old woman looked at him and said", &error);
  c.goal = number == 0 ? MAX_WORDS : c.length + (uint32_t)(number % 2) * 3;
  if (status == MKRT_OK) status = play(&c, s->frames_per_second, longest, &error);
  printf("\n");
  character_unload(&c);
  if (status != MKRT_OK) {
    fprintf(stderr, "level %ld: %s: %s\n", number, c.mkrt.mkrt_status_name(status), error.message);
  }
  if (dlclose(c.mkrt.handle) != 0) fprintf(stderr, "%s\n", dlerror());
  return status == MKRT_OK;
}

/* What the process has of the system. */
typedef struct usage {
  long threads, files, mappings, kilobytes;
} usage;

static long count_entries(const char* folder) {
  DIR* entries = opendir(folder);
  long count = 0;
  while (entries != NULL && readdir(entries) != NULL) ++count;
  if (entries != NULL) closedir(entries);
  return count;
}

static usage measure(void) {
  usage u = {.threads = count_entries("/proc/self/task"), .files = count_entries("/proc/self/fd")};
  FILE* file = fopen("/proc/self/maps", "r");
  int c;
  malloc_trim(0); /* what the heap only keeps for later is nobody's */
  while (file != NULL && (c = fgetc(file)) != EOF) u.mappings += c == '\n';
  if (file != NULL) fclose(file);
  file = fopen("/proc/self/statm", "r");
  if (file != NULL && fscanf(file, "%*d %ld", &u.kilobytes) == 1) u.kilobytes *= sysconf(_SC_PAGESIZE) / 1024;
  if (file != NULL) fclose(file);
  return u;
}

/* Whether no more is in use than `before`, as soon as the system has taken threads that were joined off its list. */
static int nothing_grew(const usage* before) {
  /* What the C library may still keep for itself: 90 levels that lose three kilobytes each would be more, and so would
   * a mapping a level. Its heaps for threads are two mappings each. */
  const long slack_kilobytes = 256, slack_mappings = 8;
  usage after = measure();
  int look;
  for (look = 0; look < 1000 && after.threads > before->threads; ++look) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    after = measure();
  }
  printf("threads %ld, then %ld; files %ld, %ld; mappings %ld, %ld; KB of memory %ld, %ld; of the engine's %zu bytes\n",
         before->threads, after.threads, before->files, after.files, before->mappings, after.mappings,
         before->kilobytes, after.kilobytes, atomic_load(&engine_bytes));
  return after.threads <= before->threads && after.files <= before->files &&
         after.mappings <= before->mappings + slack_mappings &&
         after.kilobytes <= before->kilobytes + slack_kilobytes && atomic_load(&engine_bytes) == 0;
}

int main(int argc, char** argv) {
  /* Levels after which the heap has the size that it keeps. */
  enum { WARM_UP = 10 };
  usage before = {0};
  double longest = 0;
  settings s = {.levels = 100, .frames_per_second = 60};
  if (argc < 3) {
    fprintf(stderr, "usage: example_game LIBRARY PACKAGE [LEVELS] [FRAMES_PER_SECOND]\n");
    return 2;
  }
  s.library = argv[1];
  s.package = argv[2];
  if (argc > 3) s.levels = atol(argv[3]);
  if (argc > 4) s.frames_per_second = atol(argv[4]);
  if (s.levels <= WARM_UP || s.frames_per_second < 1) {
    fprintf(stderr, "at least %d levels and a frame a second\n", WARM_UP + 1);
    return 2;
  }
  for (long number = 0; number < s.levels; ++number) {
    if (number == WARM_UP) before = measure();
    if (!level(&s, number, &longest)) return 1;
  }
  printf("%ld levels; of a frame, the character took at most %.3f ms\n", s.levels, 1e3 * longest);
  if (nothing_grew(&before)) return 0;
  fprintf(stderr, "something of the library stayed\n");
  return 1;
}
