// Turns golden.json into plain numbers for C programs: golden_numbers GOLDEN_JSON OUTPUT.
//
// Numbers are separated by white space:
//   cases; for each: prompt length, tokens chosen, the tokens of both, the top five tokens of each step, their logits;
//   then prompt length, vocabulary, tokens of the prompt, its logits [position][vocabulary].
#include <exception>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;

void write_numbers(std::ostream& out, const json& value) {
  if (value.is_array()) {
    for (const json& element : value) write_numbers(out, element);
    out << '\n';
  } else if (value.is_number_integer()) {
    out << value.get<int64_t>() << ' ';
  } else {
    out << value.get<double>() << ' ';
  }
}

void write_case(std::ostream& out, const json& value) {
  out << value.at("prompt_ids").size() << ' ' << value.at("greedy_ids").size() << '\n';
  write_numbers(out, value.at("prompt_ids"));
  write_numbers(out, value.at("greedy_ids"));
  for (const json& step : value.at("steps")) write_numbers(out, step.at("top_ids"));
  for (const json& step : value.at("steps")) write_numbers(out, step.at("top_logits"));
}

void write_golden(std::ostream& out, const json& golden) {
  out.precision(std::numeric_limits<float>::max_digits10);
  out << golden.at("cases").size() << '\n';
  for (const json& value : golden.at("cases")) write_case(out, value);
  const json& full = golden.at("full_logits");
  out << full.at("prompt_ids").size() << ' ' << full.at("logits").at(0).size() << '\n';
  write_numbers(out, full.at("prompt_ids"));
  write_numbers(out, full.at("logits"));
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::cerr << "usage: golden_numbers GOLDEN_JSON OUTPUT\n";
    return 2;
  }
  std::ifstream input(argv[1]);
  std::ofstream output(argv[2]);
  write_golden(output, json::parse(input));
  output.close();
  return output ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << "golden_numbers: " << error.what() << '\n';
  return 1;
}
