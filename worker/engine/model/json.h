// JSON from untrusted files.
//
// Purpose: the two ways in which this module reads it: a small document as a tree, of bounded size and depth
// and without repeated fields; and what every handler of a stream of events shares. Threads: pure functions.
#ifndef BFIO_WORKER_ENGINE_MODEL_JSON_H_
#define BFIO_WORKER_ENGINE_MODEL_JSON_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace bfio::worker {

// An object. INVALID_ARGUMENT: not JSON, not an object, too large, too deep, a field given twice; `path`
// opens the message.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view json, absl::string_view path);

// A stream's handler that accepts nothing; a reader overrides what its grammar has. The first fault ends the
// parse.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  // Runs over all of `json`. The fault, or empty.
  std::string Parse(absl::string_view json);

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return Unexpected("a number"); }
  bool number_float(number_float_t, const string_t&) override { return Unexpected("a fraction"); }
  bool string(string_t&) override { return Unexpected("a string"); }
  bool binary(binary_t&) override { return Unexpected("bytes"); }
  bool start_object(std::size_t) override { return Unexpected("an object"); }
  bool key(string_t&) override { return Unexpected("a field"); }
  bool end_object() override { return Unexpected("the end of an object"); }
  bool start_array(std::size_t) override { return Unexpected("an array"); }
  bool end_array() override { return Unexpected("the end of an array"); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override;

 protected:
  // Ends the parse.
  bool Fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
    return false;
  }
  // Where the parse is, for messages: "in 'model.norm.weight', shape".
  virtual std::string Where() const = 0;

 private:
  bool Unexpected(absl::string_view what);

  std::string fault_;
};

}  // namespace bfio::worker

#endif  // BFIO_WORKER_ENGINE_MODEL_JSON_H_
