// A trace's figures as JSON and as text; src/cli/README.md says what each member means.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "cli/trace_figures.hpp"

namespace mkrt::cli {

// Where the time of a step goes: means over workers and over the `steps` of the execute.
nlohmann::ordered_json memory_report(std::span<const WorkerTrace> workers, uint32_t steps);
std::string memory_text(const nlohmann::ordered_json& report);

// Records whose labels end in the same part after the last point are shown as one, by their medians.
nlohmann::ordered_json record_report(std::span<const WorkerTrace> workers,
                                     const std::function<std::string(uint32_t record)>& label_of);
// A table, a row for each.
std::string record_text(const nlohmann::ordered_json& report);

}  // namespace mkrt::cli
