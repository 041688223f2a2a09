#include "mkrt/mkrt.h"

const char* mkrt_status_name(mkrt_status status) {
  switch (status) {
    case MKRT_OK: return "MKRT_OK";
    case MKRT_ERROR_ARGUMENT: return "MKRT_ERROR_ARGUMENT";
    case MKRT_ERROR_STRUCT_SIZE: return "MKRT_ERROR_STRUCT_SIZE";
    case MKRT_ERROR_EXTENSION: return "MKRT_ERROR_EXTENSION";
    case MKRT_ERROR_HANDLE: return "MKRT_ERROR_HANDLE";
    case MKRT_ERROR_NOT_FOUND: return "MKRT_ERROR_NOT_FOUND";
    case MKRT_ERROR_OUT_OF_MEMORY: return "MKRT_ERROR_OUT_OF_MEMORY";
    case MKRT_ERROR_FILE: return "MKRT_ERROR_FILE";
    case MKRT_ERROR_FORMAT: return "MKRT_ERROR_FORMAT";
    case MKRT_ERROR_UNSUPPORTED: return "MKRT_ERROR_UNSUPPORTED";
    case MKRT_ERROR_SCHEDULE: return "MKRT_ERROR_SCHEDULE";
    case MKRT_ERROR_DEVICE: return "MKRT_ERROR_DEVICE";
    case MKRT_ERROR_BUSY: return "MKRT_ERROR_BUSY";
    case MKRT_ERROR_TIMEOUT: return "MKRT_ERROR_TIMEOUT";
    case MKRT_ERROR_DEADLINE: return "MKRT_ERROR_DEADLINE";
    case MKRT_ERROR_CANCELLED: return "MKRT_ERROR_CANCELLED";
    case MKRT_ERROR_FAULT: return "MKRT_ERROR_FAULT";
    case MKRT_ERROR_SESSION_FAILED: return "MKRT_ERROR_SESSION_FAILED";
    case MKRT_ERROR_DRIVER: return "MKRT_ERROR_DRIVER";
    case MKRT_ERROR_PEER: return "MKRT_ERROR_PEER";
    case MKRT_ERROR_INTERNAL: return "MKRT_ERROR_INTERNAL";
    default: return "MKRT_ERROR_?";
  }
}

uint32_t mkrt_version(void) { return MKRT_VERSION; }
