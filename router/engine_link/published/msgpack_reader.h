// Reads a message of msgpack value by value: what is not asked for needs no memory, and nesting has a bound.
// The base of what engines publish (rank_messages.h). Pure. Threads: one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace bfio::router {

class MsgpackReader : private nlohmann::json_sax<nlohmann::json> {
  using Json = nlohmann::json;

 public:
  // False: it is no msgpack, or nested too deeply.
  bool Read(absl::string_view message) {
    nlohmann::json_sax<Json>& events = *this;
    return Json::sax_parse(message.begin(), message.end(), &events, Json::input_format_t::msgpack);
  }

 protected:
  struct Value {
    // "" and 0: it is neither.
    absl::string_view text;
    double number = 0;
    // Integers as they are; of texts and bytes a hash.
    uint64_t word = 0;
    bool null = false;
  };
  // One with `depth()` maps and arrays around it.
  virtual void OnValue(const Value& value) = 0;
  // A map or an array begins or ends inside `depth()` others.
  virtual void OnStart() {}
  virtual void OnEnd() {}

  size_t depth() const { return names_.size(); }
  // What the present value is in the map or array at `depth`: its key, or what `fields` calls its place.
  template <size_t kFields = 1>
  absl::string_view NameIn(size_t depth, const std::array<absl::string_view, kFields>& fields = {}) const {
    if (!names_[depth].empty()) return names_[depth];
    return places_[depth] < kFields ? fields[places_[depth]] : "";
  }

 private:
  bool null() override { return Take({.null = true}); }
  bool boolean(bool) override { return Take({}); }
  bool number_integer(int64_t value) override {
    return Take({{}, static_cast<double>(value), static_cast<uint64_t>(value)});
  }
  bool number_unsigned(uint64_t value) override { return Take({{}, static_cast<double>(value), value}); }
  bool number_float(double value, const std::string&) override { return Take({{}, value}); }
  bool string(std::string& value) override { return Take({value, 0, absl::HashOf(value)}); }
  bool binary(Json::binary_t& value) override {
    return Take({{}, 0, absl::HashOf(static_cast<const std::vector<uint8_t>&>(value))});
  }
  bool start_object(size_t) override { return Start(); }
  bool start_array(size_t) override { return Start(); }
  bool key(std::string& name) override { return names_.back() = std::move(name), true; }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

  bool Start() {
    constexpr size_t kDepth = 8;
    if (depth() >= kDepth) return false;
    OnStart();
    names_.emplace_back();
    places_.push_back(0);
    return true;
  }
  bool End() {
    names_.pop_back();
    places_.pop_back();
    OnEnd();
    return Next();
  }
  bool Take(const Value& value) {
    if (depth() == 0) return false;
    OnValue(value);
    return Next();
  }
  bool Next() {
    if (depth() > 0) ++places_.back();
    return true;
  }

  // Of the values around the present one, from the outermost: its name in a map, and its place.
  std::vector<std::string> names_;
  std::vector<size_t> places_;
};

}  // namespace bfio::router
