#include "native/pjrt/api.h"

namespace millpond::pjrt {

base::Status Api::ToStatus(PJRT_Error* error, const std::string& while_doing) const {
  if (error == nullptr) return {};
  MILLPOND_PJRT_ARGS(PJRT_Error_Message, text);
  text.error = error;
  table_->PJRT_Error_Message(&text);
  MILLPOND_PJRT_ARGS(PJRT_Error_GetCode, code);
  code.error = error;
  PJRT_Error* const without_code = table_->PJRT_Error_GetCode(&code);
  base::Status status(base::Code::kInternal,
                      while_doing + ": " + std::string(text.message, text.message_size));
  if (without_code == nullptr && code.code > 0 && static_cast<int>(code.code) < base::kCodeCount) {
    status = base::Status(static_cast<base::Code>(code.code), status.message());
  }
  for (PJRT_Error* const freed : {error, without_code}) {
    if (freed == nullptr) continue;
    MILLPOND_PJRT_ARGS(PJRT_Error_Destroy, destroy);
    destroy.error = freed;
    table_->PJRT_Error_Destroy(&destroy);
  }
  return status;
}

base::Status Api::Await(PJRT_Event* event, const std::string& while_doing) const {
  if (event == nullptr) return {};
  MILLPOND_PJRT_ARGS(PJRT_Event_Await, await);
  await.event = event;
  const base::Status status = ToStatus(table_->PJRT_Event_Await(&await), while_doing);
  Free(event);
  return status;
}

base::StatusOr<bool> Api::HasHappened(PJRT_Event* event) const {
  if (event == nullptr) return true;
  MILLPOND_PJRT_ARGS(PJRT_Event_IsReady, ready);
  ready.event = event;
  MILLPOND_RETURN_IF_ERROR(ToStatus(table_->PJRT_Event_IsReady(&ready), "looking at an event"));
  return ready.is_ready;
}

void Api::Free(PJRT_Event* event) const {
  if (event == nullptr) return;
  MILLPOND_PJRT_ARGS(PJRT_Event_Destroy, destroy);
  destroy.event = event;
  static_cast<void>(ToStatus(table_->PJRT_Event_Destroy(&destroy), "freeing an event"));
}

}  // namespace millpond::pjrt
