#pragma once

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/status.h"

namespace millpond::rpc {

// How replies are compressed: as their requests are, always, or never. Whatever it says, only what
// the client accepts is sent, and a small reply goes as it is.
enum class ReplyCompression { kNone, kLikeRequest, kDeflate, kGzip };

// gzip and deflate of a server's messages, both ways.
//
// Requests are decompressed here and not in gRPC, whose filter looks at a message's size after it
// has decompressed all of it: 2 MB from anybody would take 2 GB.
class MessageEncoding {
 public:
  // No message is longer than `bytes_max` once it is decompressed.
  explicit MessageEncoding(int64_t bytes_max = INT32_MAX,
                           ReplyCompression replies = ReplyCompression::kNone)
      : bytes_max_(bytes_max), replies_(replies) {}

  // Lets gRPC bring messages as they are sent. Without it Decode finds nothing to do.
  static void Configure(grpc::ServerBuilder* builder);

  // A received message's bytes; `share`, if it is not null, counts those that it decompresses to,
  // which are at most `bytes_max` where its method allows less than the server.
  // As gRPC has it, RESOURCE_EXHAUSTED where there are too many of them, INTERNAL where they do not
  // decompress, and UNIMPLEMENTED where their encoding is unknown.
  base::Status Decode(const grpc::ByteBuffer& message, grpc::ServerContext* context,
                      std::vector<grpc::Slice>* slices, base::ByteBudget::Share* share = nullptr,
                      int64_t bytes_max = INT64_MAX) const;

  // Chooses how a reply of so many bytes is sent. Before anything is.
  void EncodeReply(size_t reply_bytes, grpc::ServerContext* context) const;

 private:
  const int64_t bytes_max_;
  const ReplyCompression replies_;
};

}  // namespace millpond::rpc
