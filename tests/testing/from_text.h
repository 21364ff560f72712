// Messages in protobuf's text format, so that a test shows a whole message in a line or two.
//
// Purpose: makes them; EXPECT_EQ(message.ShortDebugString(), "...") compares all fields. Threads: any.
#pragma once

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>

namespace bfio::testing {

// `message` with the fields in `text` changed.
template <typename Message>
Message FromText(const std::string& text, Message message = Message()) {
  EXPECT_TRUE(google::protobuf::TextFormat::MergeFromString(text, &message)) << text;
  return message;
}

}  // namespace bfio::testing
