#include "native/inference/session_run.h"

#include <cstdint>
#include <string>

#include "tests/native/fuzz/fuzz_target.h"
#include "tests/native/session_servable.h"
#include "tests/native/wire_message.h"

namespace millpond::fuzz {
namespace {

base::Status Answer(std::string_view input) {
  static const testing::SessionServable servable;
  const testing::SegmentedBytes segmented(input, {input.size() / 2});
  inference::SessionRunRequest request;
  MILLPOND_RETURN_IF_ERROR(inference::DecodeSessionRunRequest(segmented.reader(), &request));
  base::ReplyBytes reply;
  // Far from the real clock, which would end a reply that is written after its deadline.
  constexpr int64_t kNowNs = INT64_MAX / 2;
  MILLPOND_RETURN_IF_ERROR(inference::AnswerSessionRun(servable, request, {}, kNowNs, &reply));
  FUZZ_CHECK(!reply.view().empty(), "an empty reply");
  return {};
}

}  // namespace

// A SessionRunRequest is answered, or refused with a message. It is never answered with INTERNAL.
Verdict Run(std::string_view input) {
  const base::Status status = Answer(input);
  FUZZ_CHECK(status.code() != base::Code::kInternal, status.message());
  FUZZ_CHECK(status.ok() == status.message().empty(), status.message());
  return status.ok() ? Verdict::kTaken : Verdict::kRefused;
}

}  // namespace millpond::fuzz
