#include "native/rpc/message_encoding.h"

#include <grpc/compression.h>

#include <algorithm>

#include "native/rpc/inflate.h"

// What gRPC knows of a call and does not put into its C++ classes; its own server for conformance
// tests asks so too. libgrpc exports them, its headers do not have them.
grpc_compression_algorithm grpc_call_test_only_get_compression_algorithm(grpc_call* call);
uint32_t grpc_call_test_only_get_message_flags(grpc_call* call);
uint32_t grpc_call_test_only_get_encodings_accepted_by_peer(grpc_call* call);

namespace millpond::rpc {
namespace {

// gRPC's GRPC_WRITE_INTERNAL_COMPRESS: the byte before each message that says it is compressed.
constexpr uint32_t kIsCompressed = 0x80000000;

// A reply below it fits into one packet as it is.
constexpr size_t kCompressedReplyBytesMin = 1024;

// What a client's call says of its messages; it may still send some of them as they are.
grpc_compression_algorithm EncodingOf(grpc::ServerContext* context) {
  return grpc_call_test_only_get_compression_algorithm(context->c_call());
}

bool IsCompressed(grpc::ServerContext* context) {
  return (grpc_call_test_only_get_message_flags(context->c_call()) & kIsCompressed) != 0;
}

// gRPC takes an encoding that it does not know for none, and does not keep its name. It tells its
// client what it knows only in a reply.
base::Status RefuseEncoding(grpc::ServerContext* context) {
  context->AddTrailingMetadata("grpc-accept-encoding", "identity, deflate, gzip");
  return {base::Code::kUnimplemented,
          "the message is compressed, and the grpc-encoding of its call is none of gzip and "
          "deflate; send it as one of these, or as it is"};
}

bool Accepts(grpc::ServerContext* context, grpc_compression_algorithm algorithm) {
  const uint32_t accepted = grpc_call_test_only_get_encodings_accepted_by_peer(context->c_call());
  return (accepted >> static_cast<uint32_t>(algorithm) & 1U) != 0;
}

grpc_compression_algorithm Choose(ReplyCompression replies, grpc::ServerContext* context) {
  switch (replies) {
    case ReplyCompression::kLikeRequest:
      return EncodingOf(context);
    case ReplyCompression::kDeflate:
      return GRPC_COMPRESS_DEFLATE;
    case ReplyCompression::kGzip:
      return GRPC_COMPRESS_GZIP;
    case ReplyCompression::kNone:
      break;
  }
  return GRPC_COMPRESS_NONE;
}

}  // namespace

void MessageEncoding::Configure(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
}

base::Status MessageEncoding::Decode(const grpc::ByteBuffer& message, grpc::ServerContext* context,
                                     std::vector<grpc::Slice>* slices,
                                     base::ByteBudget::Share* share, int64_t bytes_max) const {
  if (!message.Valid() || !message.Dump(slices).ok() || !IsCompressed(context)) return {};
  const grpc_compression_algorithm encoding = EncodingOf(context);
  if (encoding == GRPC_COMPRESS_NONE) {
    slices->clear();
    return RefuseEncoding(context);
  }
  // gRPC's deflate is zlib's format.
  const auto format =
      encoding == GRPC_COMPRESS_GZIP ? base::DeflateFormat::kGzip : base::DeflateFormat::kZlib;
  const std::vector<grpc::Slice> compressed = std::move(*slices);
  slices->clear();
  return Inflate(format, compressed, std::min(bytes_max_, bytes_max), slices, share);
}

void MessageEncoding::EncodeReply(size_t reply_bytes, grpc::ServerContext* context) const {
  if (replies_ == ReplyCompression::kNone || reply_bytes < kCompressedReplyBytesMin) return;
  const grpc_compression_algorithm algorithm = Choose(replies_, context);
  if (algorithm == GRPC_COMPRESS_NONE || !Accepts(context, algorithm)) return;
  context->set_compression_algorithm(algorithm);
}

}  // namespace millpond::rpc
