// Values and tables as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mkrt::cli {

// Decimal units: "812 B", "6.56 MB", "2.47 GB".
std::string format_bytes(uint64_t bytes);
// With `digits` digits after the point.
std::string format_number(double value, int digits);

// Columns as wide as their longest cell, under a first row of headings. Columns whose cells all begin with a digit
// stand to the right.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// Names of the values of mkrt.h: "bf16", "scratch", "cuda".
std::string dtype_name(uint32_t dtype);
std::string tensor_kind_name(uint32_t kind);
std::string device_kind_name(uint32_t kind);

}  // namespace mkrt::cli
