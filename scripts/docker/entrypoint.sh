#!/bin/sh
# Serves $MODEL_BASE_PATH/$MODEL_NAME, as TensorFlow Serving's image does; further flags come as arguments.
# The flags of every start stand here; one that is given again, as an argument, wins (--supervise=false).
set -- --supervise --port="$MILLPOND_PORT" --rest_api_port="$MILLPOND_HTTP_PORT" "$@"
# exec: the server is process 1 and gets docker's SIGTERM itself.
for argument in "$@"; do
  case "$argument" in
    # The file has the models; the server refuses the file together with --model_name.
    --model_config_file | --model_config_file=*) exec millpond serve "$@" ;;
  esac
done
exec millpond serve --model_name="$MODEL_NAME" --model_base_path="$MODEL_BASE_PATH/$MODEL_NAME" "$@"
