#pragma once

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <vector>

#include "native/base/byte_budget.h"
#include "native/base/inflate_stream.h"
#include "native/base/status.h"

namespace millpond::rpc {

// Decompresses `from`, which holds one stream and nothing else, to at most `bytes_max` bytes:
// memory is taken as the stream grows, and no more than twice of what it has come to.
// `share`, if it is not null, counts the memory beside what it counts already. RESOURCE_EXHAUSTED
// where it is longer or the share gets no more, INTERNAL where it is no such stream or cut short.
base::Status Inflate(base::DeflateFormat format, const std::vector<grpc::Slice>& from,
                     int64_t bytes_max, std::vector<grpc::Slice>* to,
                     base::ByteBudget::Share* share = nullptr);

}  // namespace millpond::rpc
