/* The smallest host: fails unless header and library are of one version and a runtime can be made. */
#include <mkrt/host_isa.h>
#include <mkrt/mkrt.h>
#include <stdio.h>

int main(void) {
  mkrt_runtime* runtime = NULL;
  mkrt_error error = MKRT_ERROR_INIT;
  uint32_t devices = 0;
  mkrt_status status = mkrt_runtime_create(NULL, &runtime, &error);
  if (status == MKRT_OK) status = mkrt_runtime_device_count(runtime, &devices, &error);
  mkrt_runtime_destroy(runtime);
  if (status != MKRT_OK) fprintf(stderr, "%s: %s\n", mkrt_status_name(status), error.message);
  return status != MKRT_OK || devices == 0 || mkrt_version() != MKRT_VERSION;
}
