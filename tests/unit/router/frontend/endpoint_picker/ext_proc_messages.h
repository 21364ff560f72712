// Envoy's messages, as it sends them (recorded from Envoy 1.40).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "envoy/ext_proc.pb.h"

namespace bfio::testing {

namespace ext_proc = envoy::service::ext_proc::v3;
using HeaderList = std::vector<std::pair<std::string, std::string>>;

inline ext_proc::ProcessingRequest RequestHeaders(ext_proc::BodySendMode request,
                                                  ext_proc::BodySendMode response, const HeaderList& headers,
                                                  bool ends = false) {
  ext_proc::ProcessingRequest message;
  message.mutable_protocol_config()->set_request_body_mode(request);
  message.mutable_protocol_config()->set_response_body_mode(response);
  message.mutable_request_headers()->set_end_of_stream(ends);
  for (const auto& [key, value] : headers) {
    auto& header = *message.mutable_request_headers()->mutable_headers()->add_headers();
    header.set_key(key);
    header.set_raw_value(value);
  }
  return message;
}
inline ext_proc::ProcessingRequest RequestBody(std::string body, bool ends) {
  ext_proc::ProcessingRequest message;
  message.mutable_request_body()->set_body(std::move(body));
  message.mutable_request_body()->set_end_of_stream(ends);
  return message;
}
inline ext_proc::ProcessingRequest ResponseHeaders(int status, const std::string& details = "via_upstream",
                                                   bool ends = false) {
  ext_proc::ProcessingRequest message;
  auto& header = *message.mutable_response_headers()->mutable_headers()->add_headers();
  header.set_key(":status");
  header.set_raw_value(std::to_string(status));
  message.mutable_response_headers()->set_end_of_stream(ends);
  auto& fields = *(*message.mutable_attributes())["envoy.filters.http.ext_proc"].mutable_fields();
  fields["upstream.address"].set_string_value("10.0.0.1:8000");
  fields["response.code_details"].set_string_value(details);
  return message;
}
inline ext_proc::ProcessingRequest ResponseBody(std::string body, bool ends) {
  ext_proc::ProcessingRequest message;
  message.mutable_response_body()->set_body(std::move(body));
  message.mutable_response_body()->set_end_of_stream(ends);
  return message;
}

}  // namespace bfio::testing
