// Config files: protobuf text or JSON of a message whose fields are the options, with errors that name file,
// line and key.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/config/options.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/json_util.h"

namespace bfio {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::FieldDescriptorProto;

std::string UnknownKey(absl::string_view key, const OptionTable& table) {
  if (key == "config") return "a config file cannot set config";
  const std::string nearest = NearestOption(key, table);
  return absl::StrCat("no flag is named ", key,
                      nearest.empty() || nearest == "config"
                          ? " (--help lists them)"
                          : absl::StrCat(" (did you mean ", nearest, "?)"));
}

// Keeps the first error; protobuf counts lines from 0.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  FirstError(absl::string_view source, const OptionTable& table) : source_(source), table_(table) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (!text_.empty()) return;
    // protobuf's message names its type, which users do not know.
    absl::string_view key = message;
    const bool unknown = absl::ConsumePrefix(&key, "Message type \"Config\" has no field named \"") &&
                         absl::ConsumeSuffix(&key, "\".");
    text_ = absl::StrCat(source_, ":", line + 1, ": ", unknown ? UnknownKey(key, table_) : OneLine(message));
  }

  const std::string& text() const { return text_; }

 private:
  const std::string source_;
  const OptionTable& table_;
  std::string text_;
};

// protobuf's JSON parser reports "key: Cannot find field." or "(key): invalid value ..." without a line; the
// key's first occurrence in the text gives the line.
std::string JsonError(const std::string& text, absl::string_view source, const std::string& message,
                      const OptionTable& table) {
  const auto is_key = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  const auto begin = message.begin() + (absl::StartsWith(message, "(") ? 1 : 0);
  const std::string key(begin, std::find_if_not(begin, message.end(), is_key));
  const size_t at = key.empty() ? std::string::npos : text.find(absl::StrCat("\"", key, "\""));
  if (at == std::string::npos) return absl::StrCat(source, ": ", OneLine(message));
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
  const bool unknown = absl::StrContains(message, "Cannot find field");
  return absl::StrCat(source, ":", line, ": ", unknown ? UnknownKey(key, table) : OneLine(message));
}

absl::Status ParseConfig(const std::string& text, absl::string_view source, const OptionTable& table,
                         google::protobuf::Message& config) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    const auto status = google::protobuf::util::JsonStringToMessage(text, &config);
    if (status.ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(JsonError(text, source, std::string(status.message()), table));
  }
  FirstError error(source, table);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (parser.ParseFromString(text, &config)) return absl::OkStatus();
  return absl::InvalidArgumentError(error.text().empty() ? absl::StrCat(source, ": not a config file")
                                                         : error.text());
}

FieldDescriptorProto::Type FieldType(Option::Type type) {
  switch (type) {
    case Option::Type::kBool:
      return FieldDescriptorProto::TYPE_BOOL;
    case Option::Type::kSigned:
      return FieldDescriptorProto::TYPE_INT64;
    case Option::Type::kUnsigned:
      return FieldDescriptorProto::TYPE_UINT64;
    case Option::Type::kNumber:
      return FieldDescriptorProto::TYPE_DOUBLE;
    case Option::Type::kText:
      break;
  }
  return FieldDescriptorProto::TYPE_STRING;
}

// A message with a field for each option except --config. Field numbers are arbitrary: files use names.
google::protobuf::FileDescriptorProto ConfigFile(const std::vector<Option>& options) {
  google::protobuf::FileDescriptorProto file;
  file.set_name("config.proto");
  google::protobuf::DescriptorProto& message = *file.add_message_type();
  message.set_name("Config");
  for (const Option& option : options) {
    if (option.name == "config") continue;
    FieldDescriptorProto& field = *message.add_field();
    field.set_name(option.name);
    field.set_number(message.field_size());
    field.set_label(FieldDescriptorProto::LABEL_OPTIONAL);
    field.set_type(FieldType(option.type));
  }
  return file;
}

std::string FieldText(const google::protobuf::Message& config, const FieldDescriptor* field) {
  const google::protobuf::Reflection& get = *config.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return get.GetBool(config, field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(get.GetInt64(config, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(get.GetUInt64(config, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return ExactDecimal(get.GetDouble(config, field));
    default:
      return get.GetString(config, field);
  }
}

}  // namespace

absl::Status OptionTable::ReadConfig(const std::string& text, const std::string& source) {
  google::protobuf::DescriptorPool pool;
  google::protobuf::DynamicMessageFactory factory(&pool);
  const auto* file = pool.BuildFile(ConfigFile(options_));
  const std::unique_ptr<google::protobuf::Message> config(factory.GetPrototype(file->message_type(0))->New());
  BFIO_RETURN_IF_ERROR(ParseConfig(text, source, *this, *config));
  std::vector<const FieldDescriptor*> fields;
  config->GetReflection()->ListFields(*config, &fields);
  for (const FieldDescriptor* field : fields) {
    BFIO_RETURN_IF_ERROR(Set(*Find(field->name()), FieldText(*config, field), absl::StrCat(source, ": ")));
  }
  return absl::OkStatus();
}

}  // namespace bfio
