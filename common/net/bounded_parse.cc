#include "common/net/bounded_parse.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

namespace bfio {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

WireFormatLite::WireType WireTypeOf(const FieldDescriptor& field) {
  return WireFormatLite::WireTypeForFieldType(static_cast<WireFormatLite::FieldType>(field.type()));
}

// Takes the parts of the next message, of `type`, off `left`. False: too many, or not a message. Groups,
// which none of our protocols has, are refused.
bool CountParts(google::protobuf::io::CodedInputStream& in, const Descriptor& type, int64_t& left) {
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const auto wire = WireFormatLite::GetTagWireType(tag);
    const bool delimited = wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    // The parser keeps a field of another wire type than the declared one as a field that is not declared.
    if (field != nullptr && wire != WireTypeOf(*field) && !(delimited && field->is_packable()))
      field = nullptr;
    const Descriptor* const inner = field != nullptr ? field->message_type() : nullptr;
    if ((field == nullptr || inner != nullptr ||
         (delimited && field->is_repeated() && !field->is_packable())) &&
        --left < 0)
      return false;
    if (inner == nullptr) {
      if (wire == WireFormatLite::WIRETYPE_START_GROUP || !WireFormatLite::SkipField(&in, tag)) return false;
      continue;
    }
    int size = 0;
    if (!in.ReadVarintSizeAsInt(&size)) return false;
    const auto [limit, depth] = in.IncrementRecursionDepthAndPushLimit(size);
    if (depth < 0 || !CountParts(in, *inner, left) || !in.DecrementRecursionDepthAndPopLimit(limit))
      return false;
  }
  return true;
}

}  // namespace

bool ParseBounded(grpc::ByteBuffer& bytes, google::protobuf::Message& message, int64_t most_parts) {
  // A part takes at least 2 bytes.
  if (static_cast<int64_t>(bytes.Length()) > 2 * most_parts) {
    grpc::ProtoBufferReader reader(&bytes);
    google::protobuf::io::CodedInputStream in(&reader);
    int64_t left = most_parts;
    if (!reader.status().ok() || !CountParts(in, *message.GetDescriptor(), left)) return false;
  }
  grpc::ProtoBufferReader reader(&bytes);
  const bool parsed = reader.status().ok() && message.ParseFromZeroCopyStream(&reader);
  bytes.Clear();
  return parsed;
}

grpc::ByteBuffer Serialized(const google::protobuf::Message& message) {
  grpc::Slice piece(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(piece.begin()));
  return {&piece, 1};
}

}  // namespace bfio
