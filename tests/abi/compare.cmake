# Runs PROGRAM and compares what it prints with the file GOLDEN.
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE printed RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} failed: ${status}")
endif()
file(READ "${GOLDEN}" golden)
if(NOT printed STREQUAL golden)
  file(WRITE "${PROGRAM}.printed" "${printed}")
  message(FATAL_ERROR "The public layout is not that of ${GOLDEN}. Compare it with ${PROGRAM}.printed. "
                      "A change here breaks every binding; if it is meant, run the target mkrt_abi_golden.")
endif()
