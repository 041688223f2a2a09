/* A C program on the static library: it links, and says the same version. */
#include <stdio.h>

#include "mkrt/mkrt.h"

int main(void) {
  mkrt_runtime* runtime = NULL;
  mkrt_error error = MKRT_ERROR_INIT;
  uint32_t count = 0;
  if (mkrt_version() != MKRT_VERSION) return 1;
  if (mkrt_runtime_create(NULL, &runtime, &error) != MKRT_OK ||
      mkrt_runtime_device_count(runtime, &count, &error) != MKRT_OK || count < 1) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  mkrt_runtime_destroy(runtime);
  return 0;
}
