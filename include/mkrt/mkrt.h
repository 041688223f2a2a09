/* mkrt: the megakernel runtime. Public C interface.
 *
 * SPDX-License-Identifier: MIT
 *
 * mkrt runs a whole neural network as one persistent kernel inside your program. This header is everything that a
 * host application needs; `include/mkrt/README.md` is the guide, `mkrt.hpp` wraps it for C++.
 *
 * The objects, each made from the one before:
 *
 *     mkrt_runtime  ->  mkrt_mesh (devices)  \
 *                   ->  mkrt_program (package) -> mkrt_executable -> mkrt_session -> mkrt_execute
 *
 * Rules that hold for every function:
 *  - Inputs come first, outputs last and are named `out_...`. `out_error` may always be NULL.
 *  - The result is MKRT_OK (0) or a status whose value never changes between releases. On failure no output except
 *    `*out_error` is written and nothing that the call had taken is kept.
 *  - Every struct starts with `struct_size`, which the caller sets to `sizeof` of the struct that it was compiled
 *    with. A size that this library does not know is MKRT_ERROR_STRUCT_SIZE, and such a struct is not touched; this
 *    holds for `*out_error` too, so a binding with a wrong layout fails at its first call. A field that is zero means
 *    its default. A `next` chain holds extensions; one that this library does not know is MKRT_ERROR_EXTENSION, and
 *    the same one twice is MKRT_ERROR_ARGUMENT.
 *  - Objects may be destroyed in any order: an object keeps what it was made from alive. Destroying NULL does nothing.
 *    A handle used after its destruction is reported as MKRT_ERROR_HANDLE (and ignored by the destroy functions) for
 *    the last 256 destroyed handles of each runtime, as long as a handle of that runtime is left; others must not be
 *    used.
 *  - Threads: functions on one runtime, mesh, program or executable may be called from any thread at any time, except
 *    that destroying a handle must not overlap with another call on the same handle. A session belongs to one thread
 *    at a time, except for mkrt_session_query, mkrt_session_wait and mkrt_session_cancel, which any thread may call.
 *  - Strings are UTF-8 and end with a zero byte. Returned strings belong to the object that they were asked of.
 *  - The library never throws, aborts, exits, prints, installs handlers, or changes locale or environment. It creates
 *    threads only where it was asked to: the workers of a mesh with host ranks, and those of
 *    mkrt_executable_desc.loader_threads, which end with that call.
 *  - CUDA: the driver is opened by the first call that asks for devices (mkrt_runtime_device_count and _device_info, or
 *    mkrt_mesh_create where CUDA is asked for or nothing in particular), once for each runtime. Every call leaves the
 *    calling thread's current context as it was.
 */
#ifndef MKRT_MKRT_H_
#define MKRT_MKRT_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(MKRT_STATIC)
#define MKRT_API
#elif defined(_WIN32)
#if defined(MKRT_BUILDING)
#define MKRT_API __declspec(dllexport)
#else
#define MKRT_API __declspec(dllimport)
#endif
#else
#define MKRT_API __attribute__((visibility("default")))
#endif

/* Version of this header: major * 1000000 + minor * 1000 + patch. Libraries of one major version are compatible.
 * Since 0.1. */
#define MKRT_VERSION 1000

/* ---------------------------------------------------------------------------------------------------------------- */
/* Status codes                                                                                                     */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The result of a call. Since 0.1. */
typedef int32_t mkrt_status;
/* Values of mkrt_status. Since 0.1. */
enum {
  MKRT_OK = 0,
  /* An argument is NULL, out of range, or contradicts another one. */
  MKRT_ERROR_ARGUMENT = 1,
  /* `struct_size` is not one that this library knows. */
  MKRT_ERROR_STRUCT_SIZE = 2,
  /* An entry of a `next` chain is not known. */
  MKRT_ERROR_EXTENSION = 3,
  /* A handle is NULL, of another type, or was destroyed. */
  MKRT_ERROR_HANDLE = 4,
  /* A name (entry, tensor, metadata key) does not exist. */
  MKRT_ERROR_NOT_FOUND = 5,
  /* Memory of the host or of a device is exhausted; the message has the sizes. */
  MKRT_ERROR_OUT_OF_MEMORY = 6,
  /* A file cannot be opened, mapped or read. */
  MKRT_ERROR_FILE = 7,
  /* A file is there but is not what its format says. */
  MKRT_ERROR_FORMAT = 8,
  /* The format, ISA or feature is valid but this library or device does not support it. */
  MKRT_ERROR_UNSUPPORTED = 9,
  /* The schedule breaks a promise of the schedule format: bounds, waits, order or races. */
  MKRT_ERROR_SCHEDULE = 10,
  /* No such device, or no driver for it. */
  MKRT_ERROR_DEVICE = 11,
  /* The session has work in flight. */
  MKRT_ERROR_BUSY = 12,
  /* The time limit of a wait passed; the work goes on. */
  MKRT_ERROR_TIMEOUT = 13,
  /* A tile waited for longer than the execute's limit; the message says who waited for what. Reset the session. */
  MKRT_ERROR_DEADLINE = 14,
  /* The execute was cancelled. Reset the session. */
  MKRT_ERROR_CANCELLED = 15,
  /* An instruction refused its run-time data, such as a token outside the vocabulary. Reset the session. */
  MKRT_ERROR_FAULT = 16,
  /* The session failed earlier and was not reset. */
  MKRT_ERROR_SESSION_FAILED = 17,
  /* The driver reported an error; `driver_code` holds it. */
  MKRT_ERROR_DRIVER = 18,
  /* A process of the mesh was lost, or does something else than this one; the message says which. */
  MKRT_ERROR_PEER = 19,
  /* A defect of this library. Please report it. */
  MKRT_ERROR_INTERNAL = 20
};

/* Name of a status, such as "MKRT_ERROR_FILE"; "MKRT_ERROR_?" for values that this library does not know.
 * The string is static. Any thread. Since 0.1. */
MKRT_API const char* mkrt_status_name(mkrt_status status);

/* MKRT_VERSION of the library that is loaded. Any thread. Since 0.1. */
MKRT_API uint32_t mkrt_version(void);

/* What went wrong, in full. The caller owns it; the library fills it on failure and leaves it alone on success.
 * Fields that do not apply are -1 (signed) or 0 (unsigned). Since 0.1. */
typedef struct mkrt_error {
  uint32_t struct_size;
  mkrt_status status;    /* what the call returned */
  int32_t driver_code;   /* status of the CUDA driver or errno of the system */
  int32_t rank;          /* rank that reported */
  int32_t worker;        /* SM or host worker that reported */
  int32_t record;        /* index of the record in its entry */
  uint64_t tile;         /* tile number inside the record */
  uint64_t step;         /* step of the execute, from 0 */
  int32_t counter;       /* index of the counter that was waited for */
  uint32_t value_seen;   /* its value when the tile gave up */
  uint32_t value_wanted; /* the value that it waited for */
  uint32_t reserved;     /* zero */
  char message[456];     /* one sentence, always terminated */
} mkrt_error;

/* An error to pass to calls: `mkrt_error error = MKRT_ERROR_INIT;` Since 0.1. */
#define MKRT_ERROR_INIT                                        \
  {                                                            \
    sizeof(mkrt_error), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, { 0 } \
  }

/* Start of every extension struct. Since 0.1. */
typedef struct mkrt_extension {
  uint32_t struct_size;
  uint32_t type; /* one of MKRT_EXTENSION_... */
  const struct mkrt_extension* next;
} mkrt_extension;
/* Values of mkrt_extension.type. Since 0.1. */
enum {
  /* mkrt_host_isa_extension of mkrt/host_isa.h, on mkrt_runtime_desc: instruction sets for host ranks. */
  MKRT_EXTENSION_HOST_ISA = 1,
  /* mkrt_device_memory_extension, on mkrt_mesh_desc: where CUDA ranks take their memory from. */
  MKRT_EXTENSION_DEVICE_MEMORY = 2,
  /* mkrt_process_extension, on mkrt_mesh_desc: the mesh goes over several processes. */
  MKRT_EXTENSION_PROCESSES = 3
};

/* ---------------------------------------------------------------------------------------------------------------- */
/* Runtime                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* One instance of the library inside a process. Instances share nothing. Since 0.1. */
typedef struct mkrt_runtime mkrt_runtime;

/* Levels of log messages, the least verbose first. Since 0.1. */
enum { MKRT_LOG_ERROR = 1, MKRT_LOG_WARNING = 2, MKRT_LOG_INFO = 3, MKRT_LOG_DEBUG = 4 };

/* Returns `size` bytes aligned to `alignment` (a power of two), or NULL. Called from the threads that call mkrt, also
 * from several at once; must not call mkrt. Since 0.1. */
typedef void* (*mkrt_allocate_function)(void* user_data, size_t size, size_t alignment);
/* Gives memory back; `size` and `alignment` are those of the allocation. Called as above, from any thread that uses
 * mkrt; must not call mkrt. Since 0.1. */
typedef void (*mkrt_release_function)(void* user_data, void* memory, size_t size, size_t alignment);
/* Receives a message: one of MKRT_LOG_... and a line that is gone after the call. Called from any thread that uses
 * mkrt, also from several at once, never from a device worker; must not call mkrt. Since 0.1. */
typedef void (*mkrt_log_function)(void* user_data, uint32_t level, const char* message);

/* How to make a runtime; copied, but for what its chain points to (see there). Since 0.1. */
typedef struct mkrt_runtime_desc {
  uint32_t struct_size;
  uint32_t log_level; /* most verbose level that is passed to `log`; 0: MKRT_LOG_WARNING */
  const mkrt_extension* next;
  void* user_data; /* passed to the three functions below */
  /* Host memory for tensors, encoded tables and what handles point to. Both or neither; NULL: the C++ heap. The
   * description of a program (names and records) and what a call needs only until it returns come from the C++ heap,
   * pinned memory from the driver or the system. */
  mkrt_allocate_function allocate;
  mkrt_release_function release;
  mkrt_log_function log; /* NULL: silent */
} mkrt_runtime_desc;

/* Creates a runtime. `desc` may be NULL for defaults. Errors: ARGUMENT (one of allocate and release alone, level above
 * 4), STRUCT_SIZE, EXTENSION, OUT_OF_MEMORY. Any thread. Since 0.1. */
MKRT_API mkrt_status mkrt_runtime_create(const mkrt_runtime_desc* desc, mkrt_runtime** out_runtime,
                                         mkrt_error* out_error);
/* Destroys the handle; the runtime lives on while objects made from it do. NULL does nothing. Any thread.
 * Since 0.1. */
MKRT_API void mkrt_runtime_destroy(mkrt_runtime* runtime);

/* Kind of a device. Since 0.1. */
enum {
  /* The first CUDA device that a mesh can be made on (compute capability 8.0 or newer), a device for each rank where
   * there are as many, otherwise the host, which is logged as a warning with the reason. */
  MKRT_DEVICE_DEFAULT = 0,
  MKRT_DEVICE_HOST = 1,
  MKRT_DEVICE_CUDA = 2
};

/* A device, or what a rank uses of one. Since 0.1. */
typedef struct mkrt_device_info {
  uint32_t struct_size;
  uint32_t kind;          /* MKRT_DEVICE_HOST or MKRT_DEVICE_CUDA */
  uint32_t ordinal;       /* number among the devices of its kind */
  uint32_t worker_count;  /* SMs, or logical processors of the host */
  uint64_t memory_bytes;  /* all memory of the device or machine */
  uint64_t memory_free;   /* bytes free when asked; 0 for a CUDA device that is not asked about through a mesh */
  uint8_t uuid[16];       /* zero for the host */
  uint32_t compute_major; /* compute capability; 0 for the host */
  uint32_t compute_minor;
  char name[128];  /* such as "NVIDIA H200" or the processor's name */
  char target[32]; /* image target, such as "sm_90a", or the vector target, such as "AVX3" */
} mkrt_device_info;

/* Number of devices that can be used, the host device included; always at least 1. What keeps a CUDA driver or device
 * from being used is in the error of a mesh that asks for it. Any thread. Errors: HANDLE, ARGUMENT, OUT_OF_MEMORY.
 * Since 0.1. */
MKRT_API mkrt_status mkrt_runtime_device_count(mkrt_runtime* runtime, uint32_t* out_count, mkrt_error* out_error);
/* Describes device `index` (CUDA devices first, the host last). Any thread. Errors: HANDLE, ARGUMENT, STRUCT_SIZE,
 * OUT_OF_MEMORY. Since 0.1. */
MKRT_API mkrt_status mkrt_runtime_device_info(mkrt_runtime* runtime, uint32_t index, mkrt_device_info* out_info,
                                              mkrt_error* out_error);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Mesh                                                                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

/* The devices that a program runs on, one a rank; CUDA ranks may share one. Since 0.1. */
typedef struct mkrt_mesh mkrt_mesh;

/* One rank of a mesh. All ranks of a mesh are of one kind. Since 0.1. */
typedef struct mkrt_rank_desc {
  uint32_t struct_size;
  uint32_t kind;    /* MKRT_DEVICE_...; DEFAULT: the kind that another rank names, CUDA where a field below says so */
  uint32_t ordinal; /* CUDA: device number, used when `uuid` is zero. Host, and all ranks DEFAULT: ignored */
  /* Host: threads of this rank, at most MKRT_MAX_HOST_WORKERS; 0: the logical processors divided by the ranks, at
   * least 1. More than processors: slower, same results. An executable of mkrt.llm has 1.1 MB of memory for each.
   * CUDA: largest number of SMs to use; 0: all, or an equal part of what other ranks of the device leave. */
  uint32_t worker_count;
  uint8_t uuid[16]; /* CUDA: device by its UUID; zero: by ordinal */
  void* context;    /* CUDA: a CUcontext of the host application to work in; NULL: the device's primary context */
  void* stream;     /* CUDA: a CUstream of that context to enqueue on; NULL: streams of the library's own */
} mkrt_rank_desc;

/* How to make a mesh; needed only until the call returns. Since 0.1. */
typedef struct mkrt_mesh_desc {
  uint32_t struct_size;
  uint32_t rank_count; /* of this process; 0: 1; at most MKRT_MAX_RANKS, those of other processes included */
  const mkrt_extension* next;
  const mkrt_rank_desc* ranks; /* rank_count descriptions, or NULL: defaults for every rank */
} mkrt_mesh_desc;
#define MKRT_MAX_RANKS 64          /* of a mesh. Since 0.1. */
#define MKRT_MAX_HOST_WORKERS 4095 /* threads of one host rank. Since 0.1. */

/* Bytes of device memory for rank `rank`: the address, aligned to `alignment` (a power of two), or 0 where there are
 * none. Called from the threads that create executables and sessions and start traces, with the rank's context current;
 * must leave it current and must not call mkrt. Since 0.1. */
typedef uint64_t (*mkrt_device_allocate_function)(void* user_data, uint32_t rank, uint64_t size_bytes,
                                                  uint64_t alignment);
/* Gives memory back when nothing on the device uses it any more. Called as above, from any thread that uses mkrt.
 * Since 0.1. */
typedef void (*mkrt_device_release_function)(void* user_data, uint32_t rank, uint64_t address, uint64_t size_bytes);

/* On mkrt_mesh_desc.next: weights, sessions and traces of CUDA ranks lie in the application's memory. The struct is
 * copied; the functions are called until the last object made from the mesh is gone. MKRT_ERROR_UNSUPPORTED for a mesh
 * of host ranks, and for one on several CUDA devices: sessions there lie in memory that the library maps for all of
 * them. Since 0.1. */
typedef struct mkrt_device_memory_extension {
  mkrt_extension base;                    /* type MKRT_EXTENSION_DEVICE_MEMORY, struct_size of the whole */
  void* user_data;                        /* passed to both */
  mkrt_device_allocate_function allocate; /* not NULL */
  mkrt_device_release_function release;   /* not NULL */
} mkrt_device_memory_extension;

/* Several processes in one mesh, each with one or more of its ranks: process 0 has the first ones, and so on.
 *
 * Every process loads the same package, makes its own objects and executes its own ranks; a process reads and writes
 * the tensors of its own ranks only. What has to be the same everywhere is the order of calls:
 *  - mkrt_mesh_create, mkrt_executable_create and mkrt_session_create are collective: every process makes the same of
 *    these calls for a mesh, in the same order, one at a time. Each waits for the others, in all-gathers of at most
 *    `timeout_ns` each, and succeeds in all processes or fails in all: a failure in one is the others' failure too,
 *    with a sentence that names the process. Programs that differ and calls that differ are refused so. Where an
 *    all-gather itself fails, it may have succeeded elsewhere: what was made there fails when it is used, and the
 *    mesh's later collective calls fail (PEER).
 *  - mkrt_execute: every process executes the sessions of the mesh in the same order, with the same entry and step
 *    count. No tile runs before all processes have begun the execute, and none has reached it before all have: a
 *    process waits for at most the execute's wait limit for the others to begin, and as long for them to end. Where
 *    entries or step counts differ, host ranks end the execute with MKRT_ERROR_PEER; CUDA ranks do not look, and a
 *    tile that waits for what does not come ends it by its deadline.
 *  - mkrt_session_reset: every process resets a session between the same executes. With host ranks it waits for tiles
 *    of others that still run, for at most the last execute's wait limit, then fails with BUSY. With CUDA ranks it is
 *    collective, as the three above: it returns when the ranks of all processes are reset. Where one process cannot,
 *    or has work in flight, it fails in all, and all call it again.
 *  - A cancel, a fault and a missed deadline in one process end the execute in all.
 *  - mkrt_session_destroy is not collective. It cancels in all processes what this one has in flight. What others
 *    execute in such a session without it fails: with PEER on host ranks, with DEADLINE on CUDA ranks.
 * A process that ends or is killed is noticed where the system can tell (Linux 5.3), with host ranks within a
 * millisecond, with CUDA ranks by who waits (a few milliseconds, a tenth of a second where processes share a GPU) or
 * queries (a quarter of a second more), otherwise by the wait limit: executes of the others end with MKRT_ERROR_PEER or
 * MKRT_ERROR_DEADLINE, at the latest after three times the limit. PEER names the process. Nothing waits for it any
 * more: the mesh's other objects can be read and destroyed, their executes and resets fail with PEER, and a new mesh
 * takes the place of the old one.
 *
 * On Linux. Sessions of host ranks lie in memory of the system, not of the application's `allocate`. Those of CUDA
 * ranks lie in memory that the driver hands on: as a file descriptor, or, where the all-gather passes none, as a fabric
 * handle, which every device of the mesh must then have. Where a device is shared with a rank of another process, the
 * ranks divide its SMs as those of one process do; the driver runs processes on a device in turns, unless its MPS does
 * otherwise, so ranks that wait for each other there are slow. Processes trust each other: one that writes where it
 * should not harms the others. */

/* Bytes that an all-gather carries from each process, at most. Since 0.1. */
#define MKRT_MAX_EXCHANGE_BYTES 1024
/* An all-gather: `size_bytes` bytes from each process, the same number in all, at most MKRT_MAX_EXCHANGE_BYTES.
 * `out_data` gets those of process 0, of process 1, and so on. `descriptor` is a file descriptor of this process to
 * hand to all others, or -1; it stays the caller's. `out_descriptors[p]` becomes a new descriptor of what process p
 * passed, which the caller closes; -1 where it passed none, and for the own process. Returns MKRT_OK, or, within about
 * `timeout_ns` nanoseconds, a status such as MKRT_ERROR_TIMEOUT or MKRT_ERROR_PEER with a sentence in `out_error`,
 * which is not NULL, and then leaves no descriptor open. Called from the threads of the collective calls, one call
 * at a time for each mesh; must not call mkrt. Since 0.1. */
typedef mkrt_status (*mkrt_all_gather_function)(void* user_data, const void* data, uint32_t size_bytes,
                                                int32_t descriptor, uint64_t timeout_ns, void* out_data,
                                                int32_t* out_descriptors, mkrt_error* out_error);

/* On mkrt_mesh_desc.next: the mesh has ranks in other processes too, of the same user on one machine. The struct is
 * copied; the function is called by the collective calls on the mesh, its executables and their sessions. Since 0.1. */
typedef struct mkrt_process_extension {
  mkrt_extension base;                 /* type MKRT_EXTENSION_PROCESSES, struct_size of the whole */
  uint32_t process;                    /* number of this process, less than process_count */
  uint32_t process_count;              /* 1 to MKRT_MAX_RANKS */
  uint64_t timeout_ns;                 /* longest wait for the others in an all-gather; 0: 60 seconds */
  void* user_data;                     /* passed to the function */
  mkrt_all_gather_function all_gather; /* not NULL */
} mkrt_process_extension;

/* Creates a mesh, and the worker threads of its host ranks. `desc` may be NULL for one rank on the default device.
 * CUDA ranks are on one device, which then divides its SMs among them, or on several that can map each other's memory
 * and add to it atomically; where a pair cannot, the message names it. Those of one device share a context and a
 * stream. A default mesh of several ranks takes a CUDA device for each of them, else one for all, else the host; what
 * is passed over is logged. Several processes take devices one after the other, or, where each sees fewer than there
 * are ranks, the first that it sees. Launches of two meshes that have more than one device in common can keep each
 * other from beginning until a deadline ends them; those of one mesh never do. Collective where there are several
 * processes. Errors: HANDLE, ARGUMENT, STRUCT_SIZE, EXTENSION, UNSUPPORTED, DEVICE (no such device, or no driver: the
 * message says why), OUT_OF_MEMORY, DRIVER, TIMEOUT, PEER. Any thread. Since 0.1. */
MKRT_API mkrt_status mkrt_mesh_create(mkrt_runtime* runtime, const mkrt_mesh_desc* desc, mkrt_mesh** out_mesh,
                                      mkrt_error* out_error);
/* Destroys the handle; the mesh lives on while executables made on it do. NULL does nothing. Any thread. Since 0.1. */
MKRT_API void mkrt_mesh_destroy(mkrt_mesh* mesh);
/* Number of ranks, those of other processes included. Any thread. Errors: HANDLE, ARGUMENT. Since 0.1. */
MKRT_API mkrt_status mkrt_mesh_rank_count(mkrt_mesh* mesh, uint32_t* out_count, mkrt_error* out_error);
/* The ranks of this process: `*out_count` ranks from `*out_first` on; all where there are no other processes. Any
 * thread. Errors: HANDLE, ARGUMENT. Since 0.1. */
MKRT_API mkrt_status mkrt_mesh_local_ranks(mkrt_mesh* mesh, uint32_t* out_first, uint32_t* out_count,
                                           mkrt_error* out_error);
/* Describes the device of a rank of this process; `worker_count` is the number that the rank uses. Any thread. Errors:
 * HANDLE, ARGUMENT (rank), STRUCT_SIZE. Since 0.1. */
MKRT_API mkrt_status mkrt_mesh_device_info(mkrt_mesh* mesh, uint32_t rank, mkrt_device_info* out_info,
                                           mkrt_error* out_error);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Ready-made exchange                                                                                              */
/* ---------------------------------------------------------------------------------------------------------------- */

/* An all-gather for processes of one machine, over a Unix socket. Nothing of it exists unless it is created. One mesh
 * at a time should use it, since calls of two would mix. Since 0.1. */
typedef struct mkrt_exchange mkrt_exchange;

/* How to connect; needed only until the call returns. Since 0.1. */
typedef struct mkrt_exchange_desc {
  uint32_t struct_size;
  uint32_t process;       /* number of this process, less than process_count */
  uint32_t process_count; /* 1 to MKRT_MAX_RANKS */
  uint32_t reserved;      /* zero */
  const mkrt_extension* next;
  /* UTF-8, at most 100 bytes, the same in all processes: the socket's path, which does not exist yet and is removed
   * when all have come, or "@" and a name, which then is no file and known only inside the network namespace. */
  const char* address;
  uint64_t timeout_ns; /* longest wait for all to come; 0: 60 seconds */
} mkrt_exchange_desc;

/* Connects the processes: returns in each when all have come. Processes of other users are turned away, and so is
 * whoever does not speak the protocol; neither keeps the others from coming. An exchange of which a call failed is of
 * no use any more. Errors: HANDLE, ARGUMENT, STRUCT_SIZE, EXTENSION, UNSUPPORTED (not on this system), FILE (the
 * address cannot be used), TIMEOUT, PEER, OUT_OF_MEMORY. Any thread. Since 0.1. */
MKRT_API mkrt_status mkrt_exchange_create(mkrt_runtime* runtime, const mkrt_exchange_desc* desc,
                                          mkrt_exchange** out_exchange, mkrt_error* out_error);
/* Destroys the handle; the exchange lives on while meshes made with it do. NULL does nothing. Any thread. Since 0.1. */
MKRT_API void mkrt_exchange_destroy(mkrt_exchange* exchange);
/* Fills what mkrt_mesh_desc.next takes. The mesh keeps the exchange alive; the struct itself does not. Any thread.
 * Errors: HANDLE, ARGUMENT, STRUCT_SIZE (of `out_extension->base`). Since 0.1. */
MKRT_API mkrt_status mkrt_exchange_get_extension(mkrt_exchange* exchange, mkrt_process_extension* out_extension,
                                                 mkrt_error* out_error);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Program                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A package that was read and verified. Immutable; its weight files stay open and mapped. Since 0.1. */
typedef struct mkrt_program mkrt_program;

/* Which package to load; needed only until the call returns. Since 0.1. */
typedef struct mkrt_program_desc {
  uint32_t struct_size;
  uint32_t reserved; /* zero */
  const mkrt_extension* next;
  const char* path; /* UTF-8, not empty: the package's folder, or its program.json */
} mkrt_program_desc;

/* Reads a package and verifies its schedule: what loads can neither deadlock nor race nor leave its tensors.
 * Errors: HANDLE, ARGUMENT, STRUCT_SIZE, EXTENSION, FILE, FORMAT, UNSUPPORTED, SCHEDULE, OUT_OF_MEMORY; the message
 * names the file, the JSON pointer or the record, and what is wrong. Any thread. Since 0.1. */
MKRT_API mkrt_status mkrt_program_load(mkrt_runtime* runtime, const mkrt_program_desc* desc, mkrt_program** out_program,
                                       mkrt_error* out_error);
/* Destroys the handle; the program lives on while executables made from it do. NULL does nothing. Any thread. Since
 * 0.1. */
MKRT_API void mkrt_program_destroy(mkrt_program* program);

/* A program as a whole; sizes in bytes. Since 0.1. */
typedef struct mkrt_program_info {
  uint32_t struct_size;
  uint32_t rank_count;      /* ranks that the program is written for */
  uint32_t entry_count;     /* at least 1 */
  uint32_t tensor_count;    /* of all kinds */
  uint64_t weight_bytes;    /* a rank, all weight tensors */
  uint64_t session_bytes;   /* a rank, for each session: state, inputs, outputs, scratch, counters */
  uint64_t isa_fingerprint; /* of the ISA definition that the package carries: what must match to run it */
  const char* isa_name;     /* such as "mkrt.llm" */
} mkrt_program_info;
/* Describes the program. Any thread. Errors: HANDLE, ARGUMENT, STRUCT_SIZE. Since 0.1. */
MKRT_API mkrt_status mkrt_program_get_info(mkrt_program* program, mkrt_program_info* out_info, mkrt_error* out_error);

/* One entry: a list of records that an execute runs. Since 0.1. */
typedef struct mkrt_entry_info {
  uint32_t struct_size;
  uint32_t record_count;  /* at least 1 */
  uint32_t counter_count; /* words on each rank, those of all its counter arrays together */
  uint32_t reserved;      /* zero */
  uint64_t tile_count;    /* tiles of one step on one rank */
  const char* name;       /* as mkrt_program_find_entry takes it */
} mkrt_entry_info;
/* Describes entry `index`, from 0 to entry_count - 1. Any thread. Errors: HANDLE, ARGUMENT (index), STRUCT_SIZE.
 * Since 0.1. */
MKRT_API mkrt_status mkrt_program_entry_info(mkrt_program* program, uint32_t index, mkrt_entry_info* out_info,
                                             mkrt_error* out_error);
/* Index of the entry named `name`. Any thread. Errors: HANDLE, ARGUMENT, NOT_FOUND. Since 0.1. */
MKRT_API mkrt_status mkrt_program_find_entry(mkrt_program* program, const char* name, uint32_t* out_index,
                                             mkrt_error* out_error);

/* One record: an instruction over a grid of tiles. Since 0.1. */
typedef struct mkrt_record_info {
  uint32_t struct_size;
  uint32_t wait_count;   /* that each tile keeps before it reads */
  uint32_t signal_count; /* that each tile sends when it is done */
  uint32_t grid[4];      /* tiles in each dimension, the last fastest; 1 for dimensions that it does not have */
  uint32_t reserved;     /* zero */
  uint64_t tile_count;   /* product of the grid */
  uint64_t bytes_read;   /* bytes of weight tensors that one rank's tiles declare to read, each tile counted */
  const char* opcode;    /* name in the ISA */
  const char* label;     /* the record's label, or "" */
} mkrt_record_info;
/* Describes record `record` of entry `entry`. Any thread. Errors: HANDLE, ARGUMENT (indices), STRUCT_SIZE.
 * Since 0.1. */
MKRT_API mkrt_status mkrt_program_record_info(mkrt_program* program, uint32_t entry, uint32_t record,
                                              mkrt_record_info* out_info, mkrt_error* out_error);

/* Element types. Values are part of the schedule format. Since 0.1. */
enum {
  MKRT_DTYPE_F32 = 1,
  MKRT_DTYPE_F16 = 2,
  MKRT_DTYPE_BF16 = 3,
  MKRT_DTYPE_I32 = 4,
  MKRT_DTYPE_U32 = 5,
  MKRT_DTYPE_U8 = 6
};

/* What a tensor is for. Since 0.1. */
enum {
  MKRT_TENSOR_WEIGHT = 1, /* constant, one for an executable; cannot be read or written through a session */
  MKRT_TENSOR_STATE = 2,  /* kept from one execute to the next, zero after a reset; readable and writable */
  MKRT_TENSOR_INPUT = 3,  /* written by the host, kept, zero after a reset; readable and writable */
  MKRT_TENSOR_OUTPUT = 4, /* written by the program; readable */
  MKRT_TENSOR_SCRATCH = 5 /* of no meaning between executes; cannot be read or written */
};

#define MKRT_MAX_DIMENSIONS 8 /* of a tensor. Since 0.1. */
/* One tensor; every rank has an instance of it with the same shape. Since 0.1. */
typedef struct mkrt_tensor_info {
  uint32_t struct_size;
  uint32_t dtype;                      /* MKRT_DTYPE_... */
  uint32_t kind;                       /* MKRT_TENSOR_... */
  uint32_t dimension_count;            /* of `shape`, at most MKRT_MAX_DIMENSIONS */
  uint64_t shape[MKRT_MAX_DIMENSIONS]; /* elements, outermost first, row-major, without gaps */
  uint64_t size_bytes;                 /* on each rank */
  const char* name;                    /* as mkrt_program_find_tensor takes it */
} mkrt_tensor_info;
/* Describes tensor `index`, from 0 to tensor_count - 1. Any thread. Errors: HANDLE, ARGUMENT (index), STRUCT_SIZE.
 * Since 0.1. */
MKRT_API mkrt_status mkrt_program_tensor_info(mkrt_program* program, uint32_t index, mkrt_tensor_info* out_info,
                                              mkrt_error* out_error);
/* Index of the tensor named `name`. Any thread. Errors: HANDLE, ARGUMENT, NOT_FOUND. Since 0.1. */
MKRT_API mkrt_status mkrt_program_find_tensor(mkrt_program* program, const char* name, uint32_t* out_index,
                                              mkrt_error* out_error);
/* A value of the package's "metadata" object, which belongs to the program. Any thread. Errors: HANDLE, ARGUMENT,
 * NOT_FOUND. Since 0.1. */
MKRT_API mkrt_status mkrt_program_metadata(mkrt_program* program, const char* key, const char** out_value,
                                           mkrt_error* out_error);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Executable and session                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

/* A program on a mesh: images loaded, weights resident. Since 0.1. */
typedef struct mkrt_executable mkrt_executable;

/* How to make an executable; needed only until the call returns. Since 0.1. */
typedef struct mkrt_executable_desc {
  uint32_t struct_size;
  /* Threads that bring weights to CUDA devices: the calling one and others that exist only during the call. 0: 1; at
   * most MKRT_MAX_LOADER_THREADS. One reads cached files at 6 to 20 GB/s, by processor and file system; together they
   * take up to 48 MB of pinned memory during the call. */
  uint32_t loader_threads;
  const mkrt_extension* next;
  uint64_t memory_budget; /* most bytes of device memory a rank for weights and sessions together; 0: no limit */
} mkrt_executable_desc;
#define MKRT_MAX_LOADER_THREADS 64 /* of one executable's creation. Since 0.1. */

/* Makes a program ready to run on a mesh. Host ranks use the mapped weights in place. `desc` may be NULL. Collective
 * where there are several processes, which then have the same program. Errors: HANDLE, ARGUMENT (program and mesh of
 * different runtimes or rank counts, programs that differ between processes), STRUCT_SIZE, EXTENSION, UNSUPPORTED (no
 * image or ISA for the device), OUT_OF_MEMORY, DRIVER, FILE, TIMEOUT, PEER. Any thread. Since 0.1. */
MKRT_API mkrt_status mkrt_executable_create(mkrt_program* program, mkrt_mesh* mesh, const mkrt_executable_desc* desc,
                                            mkrt_executable** out_executable, mkrt_error* out_error);
/* Destroys the handle; the executable lives on while its sessions do. NULL does nothing. Any thread. Since 0.1. */
MKRT_API void mkrt_executable_destroy(mkrt_executable* executable);

/* One stream of work on an executable, with state, inputs and outputs of its own. Since 0.1. */
typedef struct mkrt_session mkrt_session;

/* Creates a session; all its tensors are zero. Collective where there are several processes. Errors: HANDLE, ARGUMENT,
 * OUT_OF_MEMORY, DRIVER, UNSUPPORTED, TIMEOUT, PEER. Any thread. Since 0.1. */
MKRT_API mkrt_status mkrt_session_create(mkrt_executable* executable, mkrt_session** out_session,
                                         mkrt_error* out_error);
/* Cancels what is in flight, waits for it to stop (milliseconds: as long as the tiles that run), and frees the session.
 * NULL does nothing. Any thread, but not while another call on the session goes on. Since 0.1. */
MKRT_API void mkrt_session_destroy(mkrt_session* session);
/* Makes every tensor and counter of this process's ranks zero and clears a failure. Collective where there are several
 * processes with CUDA ranks. Errors: HANDLE, BUSY, DRIVER, PEER, and then TIMEOUT and OUT_OF_MEMORY. Since 0.1. */
MKRT_API mkrt_status mkrt_session_reset(mkrt_session* session, mkrt_error* out_error);

/* Copies `size_bytes` bytes from `data` to byte `offset_bytes` of an input or state tensor of `rank`, a rank of this
 * process; done when the call returns. Errors: HANDLE, ARGUMENT (index, kind or range), BUSY, DRIVER. Since 0.1. */
MKRT_API mkrt_status mkrt_session_write(mkrt_session* session, uint32_t rank, uint32_t tensor, uint64_t offset_bytes,
                                        const void* data, uint64_t size_bytes, mkrt_error* out_error);
/* Copies bytes of an input, output or state tensor of `rank` to `out_data`. Errors: HANDLE, ARGUMENT, BUSY, DRIVER.
 * Since 0.1. */
MKRT_API mkrt_status mkrt_session_read(mkrt_session* session, uint32_t rank, uint32_t tensor, uint64_t offset_bytes,
                                       uint64_t size_bytes, void* out_data, mkrt_error* out_error);
/* Address of an input, output or state tensor in the rank's memory, for sharing without a copy. It stays valid until
 * the session is destroyed; reading or writing there while work is in flight is a race. Errors: HANDLE, ARGUMENT.
 * Since 0.1. */
MKRT_API mkrt_status mkrt_session_tensor_address(mkrt_session* session, uint32_t rank, uint32_t tensor,
                                                 void** out_address, mkrt_error* out_error);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Execute                                                                                                          */
/* ---------------------------------------------------------------------------------------------------------------- */

/* How tiles are handed to workers. Results do not depend on it. Since 0.1. */
enum {
  MKRT_QUEUE_DYNAMIC = 0, /* the next number of one global counter */
  MKRT_QUEUE_STATIC = 1   /* worker w takes tiles w, w + workers, w + 2 * workers, ... */
};

/* What to execute; needed only until the call returns. Since 0.1. */
typedef struct mkrt_execute_desc {
  uint32_t struct_size;
  uint32_t entry;        /* index of the entry */
  uint32_t step_count;   /* passes over the entry; 0: 1 */
  uint32_t queue_mode;   /* MKRT_QUEUE_... */
  uint32_t worker_limit; /* most SMs or threads a rank; 0: all of the mesh's */
  uint32_t reserved;     /* zero */
  const mkrt_extension* next;
  /* Longest time in nanoseconds that a tile may wait for a counter before the execute fails with
   * MKRT_ERROR_DEADLINE; 0: 10 seconds. Of tiles that wait for each other, the error names the earliest in the queue;
   * on host ranks it is known after at most twice the limit. A CUDA rank, and each of several processes, also waits for
   * so long for the others to begin an execute, and to end it. */
  uint64_t wait_limit_ns;
} mkrt_execute_desc;

/* Enqueues `step_count` steps of an entry and returns without waiting. `*out_value`, if wanted, becomes the value that
 * the session's timeline reaches when they are done; values grow by 1 with each execute. Allocates nothing. `desc` may
 * be NULL for one step of entry 0. Executes of one session run in order. On a stream of the application's that is
 * capturing, the execute becomes part of the graph (README.md, "Graphs"). Errors: HANDLE, ARGUMENT, STRUCT_SIZE,
 * EXTENSION, BUSY (64 executes are in flight), SESSION_FAILED, DRIVER. Since 0.1. */
MKRT_API mkrt_status mkrt_execute(mkrt_session* session, const mkrt_execute_desc* desc, uint64_t* out_value,
                                  mkrt_error* out_error);

/* Value that the timeline has reached. Failed and cancelled executes count as reached; their status is returned, with
 * the sentence in `out_error`, until the session is reset; `*out_value` is written then too. Any thread. Errors:
 * HANDLE, ARGUMENT, and what executes report: DEADLINE, CANCELLED, FAULT, DRIVER, PEER. Since 0.1. */
MKRT_API mkrt_status mkrt_session_query(mkrt_session* session, uint64_t* out_value, mkrt_error* out_error);
/* Waits until the timeline reaches `value`, for at most `timeout_ns` nanoseconds (UINT64_MAX: without a limit).
 * Any thread. Errors: as mkrt_session_query, TIMEOUT, ARGUMENT (a value that was never given out). Since 0.1. */
MKRT_API mkrt_status mkrt_session_wait(mkrt_session* session, uint64_t value, uint64_t timeout_ns,
                                       mkrt_error* out_error);
/* Makes everything in flight stop soon, as soon as the tiles that run are done; it then reports MKRT_ERROR_CANCELLED.
 * Nothing happens when nothing is in flight; where an execute was captured in a graph, something always may be, and the
 * session is cancelled until it is reset, as is every launch of the graph. Any thread. Errors: HANDLE. Since 0.1. */
MKRT_API mkrt_status mkrt_session_cancel(mkrt_session* session, mkrt_error* out_error);

/* ---------------------------------------------------------------------------------------------------------------- */
/* Trace                                                                                                            */
/* ---------------------------------------------------------------------------------------------------------------- */

/* What happened to a tile and when: indices of mkrt_trace_tile.time, in the order in which they come. Since 0.1. */
enum {
  MKRT_TRACE_FETCHED = 0,       /* its number was known and there was room for it */
  MKRT_TRACE_WEIGHTS_BEGIN = 1, /* the worker came to its weights, whether it has any or not */
  MKRT_TRACE_WEIGHTS_END = 2,   /* the last of them was on its way; 0 where it has none */
  MKRT_TRACE_WAIT_BEGIN = 3,    /* the worker came to its waits */
  MKRT_TRACE_WAIT_END = 4,      /* its counters were reached */
  MKRT_TRACE_INPUTS = 5,        /* its inputs, or the first part of them, were there */
  MKRT_TRACE_PREPARED = 6,      /* its inputs were prepared */
  MKRT_TRACE_CONSUMED = 7,      /* the last of its weights was used */
  MKRT_TRACE_STORE_BEGIN = 8,   /* its sums were there */
  MKRT_TRACE_STORE_END = 9,     /* its results were stored */
  MKRT_TRACE_SIGNALLED = 10,    /* its signals were sent, or left to the worker's next tile */
  /* Not in this order: when no weights were on their way to the worker. */
  MKRT_TRACE_DRAINED = 11,     /* all that were asked for had come, and the worker had no next tile to ask for */
  MKRT_TRACE_STALL_BEGIN = 12, /* until STALL_END all had come, and the worker could not ask for more of this tile's; */
  MKRT_TRACE_STALL_END = 13,   /* of several such times it is the last one's end, and the difference their sum */
  MKRT_TRACE_EVENTS = 14
};
/* One tile of a trace. Times are nanoseconds of the device's clock, 0 for what does not happen to the tile. The device
 * writes arrays of these, so the layout is fixed and has no struct_size. Since 0.1. */
typedef struct mkrt_trace_tile {
  uint32_t record; /* index in the entry */
  uint32_t step;   /* of the execute */
  uint64_t tile;   /* number inside the record */
  uint64_t time[MKRT_TRACE_EVENTS];
} mkrt_trace_tile;

/* From the next execute on, each execute writes what happened to the first `tiles_per_worker` tiles of every worker,
 * in device memory of 128 bytes a tile; 0 ends it. Traced executes take a few percent longer. Errors: HANDLE, BUSY,
 * UNSUPPORTED (host devices do not trace), OUT_OF_MEMORY, DRIVER. Since 0.1. */
MKRT_API mkrt_status mkrt_session_trace(mkrt_session* session, uint32_t tiles_per_worker, mkrt_error* out_error);
/* Copies the first `count` tiles that worker `worker` ran in the last execute to `out_tiles`, in their order; all zero
 * where it ran fewer. Workers are numbered through all ranks of this process, those of the first rank first. Errors:
 * HANDLE, ARGUMENT (more than is traced, or no such worker), BUSY, UNSUPPORTED, DRIVER. Since 0.1. */
MKRT_API mkrt_status mkrt_session_read_trace(mkrt_session* session, uint32_t worker, uint32_t count,
                                             mkrt_trace_tile* out_tiles, mkrt_error* out_error);

#ifdef __cplusplus
}
#endif

#endif /* MKRT_MKRT_H_ */
