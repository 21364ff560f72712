// Three archives for the descriptions of structs in fields.h: to bytes, from bytes, to JSON. One description
// serves all three. The bytes of a struct are its fields in order, each after its number; zeros, empty lists
// and absent values are omitted, and a 0 ends the struct. Integers are varints, doubles are varints of their
// reversed bytes (short where they are exactly floats), and request ids are differences to the id before.
// Pure; one thread.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "router/core/model/request.h"

namespace bfio::record {

// Objects that own what the spans of a decoded event refer to.
using Storage = std::vector<std::shared_ptr<const void>>;

// What the archives share. Self has Begin (a field; whether it has a value), Value, Id, Fixed, Count and
// EndList (a list), Open and Close (a struct) and Check.
template <class Self, bool kIn>
class Archive {
 public:
  static constexpr bool kReads = kIn;
  // Whether hints are part of reports.
  bool hints() const { return true; }

  template <class T>
  void Int(const char* name, T& value, int64_t low = std::numeric_limits<int64_t>::min(),
           int64_t high = std::numeric_limits<int64_t>::max()) {
    Scalar(name, value, value != std::remove_const_t<T>());
    self().Check(name, value, low, high);
  }
  template <class T>
  void Enum(const char* name, T& value, std::remove_const_t<T> last) {
    auto number = static_cast<int32_t>(value);
    Int(name, number, 0, static_cast<int32_t>(last));
    if constexpr (kIn) value = static_cast<T>(number);
  }
  template <class T>
  void Real(const char* name, T& value, double low, double high) {
    Scalar(name, value, std::bit_cast<uint64_t>(value) != 0);
    self().Check(name, value, low, high);
  }
  template <class T>
  void Id(const char* name, T& id) {
    if (self().Begin(name, true)) self().Id(id);
  }
  // A value that is mostly equal to another one.
  template <class T>
  void Near(const char* name, T& value, int64_t other) {
    auto behind = static_cast<int64_t>(static_cast<uint64_t>(other) - static_cast<uint64_t>(value));
    Int(name, behind);
    if constexpr (kIn)
      value = static_cast<int64_t>(static_cast<uint64_t>(other) - static_cast<uint64_t>(behind));
  }
  template <class T>
  void Text(const char* name, T& value) {
    Scalar(name, value, !value.empty());
  }

  template <class T>
  void OptionalInt(const char* name, T& value, int64_t low, int64_t high) {
    if (!Present(name, value)) return;
    self().Value(*value);
    self().Check(name, *value, low, high);
  }
  template <class T>
  void OptionalReal(const char* name, T& value, double low, double high) {
    if (!Present(name, value)) return;
    self().Value(*value);
    self().Check(name, *value, low, high);
  }
  template <class T>
  void OptionalStruct(const char* name, T& value) {
    if (Present(name, value)) Struct(*value);
  }

  template <class List>
  void Structs(const char* name, List& list) {
    Each(name, list, [this](auto& element) { Struct(element); });
  }
  template <class List>
  void Ids(const char* name, List& list) {
    Each(name, list, [this](auto& id) { self().Id(id); });
  }
  template <class List>
  void Ints(const char* name, List& list) {
    Each(name, list, [this](auto& value) { self().Value(value); });
  }
  // Numbers that fill their 64 bits.
  template <class List>
  void Words(const char* name, List& list) {
    Each(name, list, [this](auto& value) { self().Fixed(value); });
  }

 private:
  Self& self() { return static_cast<Self&>(*this); }

  template <class T>
  void Scalar(const char* name, T& value, bool present) {
    if (self().Begin(name, present)) {
      self().Value(value);
    } else if constexpr (kIn) {
      value = T();
    }
  }
  template <class T>
  bool Present(const char* name, T& value) {
    const bool present = self().Begin(name, value.has_value());
    if constexpr (kIn) {
      value.reset();
      if (present) value.emplace(typename T::value_type());
    }
    return present;
  }
  template <class T>
  void Struct(T& value) {
    const auto outer = self().Open();
    Fields(self(), value);
    self().Close(outer);
  }
  template <class List, class F>
  void Each(const char* name, List& list, F one) {
    const bool present = self().Begin(name, !list.empty());
    if constexpr (kIn) {
      std::vector<typename List::value_type> read;
      for (size_t left = present ? self().Count() : 0; left > 0 && self().ok(); --left)
        one(read.emplace_back());
      self().Store(std::move(read), list);
    } else if (present) {
      self().Count(list.size());
      for (auto& element : list) one(element);
      self().EndList();
    }
  }
};

class Writer : public Archive<Writer, false> {
 public:
  // Appends to `out`.
  Writer(core::RequestId base, bool hints, std::string* out) : id_(base), hints_(hints), out_(*out) {}
  bool hints() const { return hints_; }

  bool Begin(const char*, bool present) {
    ++field_;
    if (present) Varint(static_cast<uint64_t>(field_));
    return present;
  }
  template <class T>
  requires std::is_integral_v<T>
  void Value(T value) {
    if constexpr (std::is_signed_v<T>) {
      // Zigzag: numbers near 0 are short, whatever their sign.
      const auto wide = static_cast<int64_t>(value);
      Varint((static_cast<uint64_t>(wide) << 1) ^ static_cast<uint64_t>(wide >> 63));
    } else {
      Varint(value);
    }
  }
  void Value(double value) { Varint(__builtin_bswap64(std::bit_cast<uint64_t>(value))); }
  void Value(const std::string& value) {
    Varint(value.size());
    out_ += value;
  }
  void Id(core::RequestId id) { Value(static_cast<int64_t>(id - std::exchange(id_, id))); }
  using Archive::Id;
  void Fixed(uint64_t value) {
    for (int i = 0; i < 8; ++i) out_.push_back(static_cast<char>(value >> (8 * i)));
  }
  void Count(size_t count) { Varint(count); }
  void EndList() {}
  // The next field has this number.
  void From(int number) { field_ = number - 1; }
  int Open() { return std::exchange(field_, 0); }
  void Close(int outer) {
    out_.push_back('\0');
    field_ = outer;
  }
  template <class T, class Bound>
  void Check(const char*, T, Bound, Bound) {}

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<char>(value | 0x80));
    out_.push_back(static_cast<char>(value));
  }

  core::RequestId id_;
  const bool hints_;
  std::string& out_;
  int field_ = 0;
};

// Stops at the first error: fields are zero from there on.
class Reader : public Archive<Reader, true> {
 public:
  Reader(absl::string_view bytes, core::RequestId base, Storage* storage)
      : bytes_(bytes), id_(base), storage_(*storage) {}

  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  bool AtEnd() const { return bytes_.empty(); }

  bool Begin(const char*, bool) {
    if (!ok() || bytes_.empty() || static_cast<unsigned char>(bytes_[0]) != ++field_) return false;
    bytes_.remove_prefix(1);
    return true;
  }
  template <class T>
  requires std::is_integral_v<T>
  void Value(T& value) {
    const uint64_t raw = Varint();
    if constexpr (std::is_signed_v<T>) {
      // Zigzag: numbers near 0 are short, whatever their sign.
      const auto wide = static_cast<int64_t>(raw >> 1) ^ -static_cast<int64_t>(raw & 1);
      value = static_cast<T>(wide);
      if (value != wide) Fail("a number is out of range");
    } else {
      value = static_cast<T>(raw);
      if (value != raw) Fail("a number is out of range");
    }
  }
  void Value(double& value) { value = std::bit_cast<double>(__builtin_bswap64(Varint())); }
  void Value(std::string& value) { value = std::string(Take(Varint())); }
  void Id(core::RequestId& id) {
    int64_t difference = 0;
    Value(difference);
    id = id_ += static_cast<uint64_t>(difference);
  }
  using Archive::Id;
  void Fixed(uint64_t& value) {
    value = 0;
    const absl::string_view bytes = Take(8);
    for (size_t i = 0; i < bytes.size(); ++i)
      value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  }
  // No element is shorter than a byte.
  size_t Count() {
    const uint64_t count = Varint();
    if (count > bytes_.size()) Fail("a list is longer than its record");
    return ok() ? static_cast<size_t>(count) : 0;
  }
  // The next field has this number.
  void From(int number) { field_ = number - 1; }
  int Open() { return std::exchange(field_, 0); }
  void Close(int outer) {
    if (Take(1) != absl::string_view("\0", 1)) Fail("a field is unknown");
    field_ = outer;
  }
  template <class T>
  void Store(std::vector<T> read, std::vector<T>& list) {
    list = std::move(read);
  }
  template <class T>
  void Store(std::vector<T> read, absl::Span<const T>& list) {
    auto kept = std::make_shared<const std::vector<T>>(std::move(read));
    list = *kept;
    if (!kept->empty()) storage_.push_back(std::move(kept));
  }
  // Also refuses NaN.
  template <class T, class Bound>
  void Check(const char* name, const T& value, Bound low, Bound high) {
    if (std::is_same_v<T, uint64_t> ||
        (static_cast<Bound>(value) >= low && static_cast<Bound>(value) <= high))
      return;
    Fail(absl::StrCat(name, " ", +value, " is outside ", low, "..", high));
  }
  void Fail(absl::string_view what) {
    if (ok()) status_ = absl::InvalidArgumentError(what);
    bytes_ = {};
  }

 private:
  absl::string_view Take(uint64_t size) {
    if (size > bytes_.size()) {
      Fail("a record ends too early");
      return {};
    }
    const absl::string_view taken = bytes_.substr(0, static_cast<size_t>(size));
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const absl::string_view byte = Take(1);
      if (byte.empty()) return 0;
      value |= uint64_t{static_cast<unsigned char>(byte[0]) & 0x7fu} << shift;
      if ((byte[0] & 0x80) == 0) return value;
    }
    Fail("a number is too long");
    return 0;
  }

  absl::string_view bytes_;
  core::RequestId id_;
  Storage& storage_;
  absl::Status status_;
  int field_ = 0;
};

// The fields of one JSON object, without its braces.
class JsonWriter : public Archive<JsonWriter, false> {
 public:
  const std::string& text() const { return text_; }

  bool Begin(const char* name, bool present) {
    if (!present) return false;
    Separate();
    absl::StrAppend(&text_, "\"", name, "\":");
    fresh_ = true;
    return true;
  }
  template <class T>
  requires std::is_integral_v<T>
  void Value(T value) {
    Separate();
    absl::StrAppend(&text_, +value);
  }
  void Value(double value) {
    Separate();
    std::isfinite(value) ? absl::StrAppendFormat(&text_, "%.17g", value) : text_.append("null");
  }
  void Value(const std::string& value) {
    Separate();
    text_ += '"';
    for (const char c : value) text_ += c == '"' || c == '\\' || c < ' ' ? '?' : c;
    text_ += '"';
  }
  void Id(core::RequestId id) { Value(id); }
  using Archive::Id;
  void Fixed(uint64_t value) { Value(value); }
  void Count(size_t) { Bracket('['); }
  void EndList() { text_ += ']', fresh_ = false; }
  void From(int) {}
  int Open() { return Bracket('{'), 0; }
  void Close(int) { text_ += '}', fresh_ = false; }
  template <class T, class Bound>
  void Check(const char*, T, Bound, Bound) {}

 private:
  void Separate() {
    if (!std::exchange(fresh_, false)) text_ += ',';
  }
  void Bracket(char bracket) {
    Separate();
    text_ += bracket;
    fresh_ = true;
  }

  std::string text_;
  // Nothing precedes the next value in its list or object.
  bool fresh_ = true;
};

}  // namespace bfio::record
