# SPDX-License-Identifier: Apache-2.0
# bash completion for symmshim(1).

_symmshim_options() {
    case $1 in
    run) echo --policy --audit --audit-only --off --shim --help ;;
    report) echo --require --json --html --trace --help ;;
    doctor) echo --seconds --shim --json --help ;;
    explain) echo --op --bytes --dtype --redop --nranks --nccl --policy --json --help ;;
    check) echo --json --help ;;
    bench)
        echo --ops --dtypes --redops --min-bytes --max-bytes --factor --ranks --rounds --timeout --busy --copy-engine \
            --policy --libs --plot --host --runs --json --shim --help
        ;;
    tune) echo --out --min-bytes --max-bytes --factor --ranks --rounds --timeout --libs --shim --help ;;
    esac
}

# The index of the word that ends the tool's own options: -- or the command to start; 0 while there is none.
_symmshim_end() {
    local i
    for ((i = 2; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        --) echo "$i" && return ;;
        --policy | --audit | --shim | --seconds) ((i++)) ;;
        -*) ;;
        *) echo "$((i - 1))" && return ;;
        esac
    done
    echo 0
}

_symmshim() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]} end
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'run report doctor explain check bench tune --help --version' -- "$current")
        return
    fi
    if [[ $command == run || $command == doctor ]]; then
        end=$(_symmshim_end)
        if ((end > 0)); then
            if declare -F _command_offset >/dev/null; then
                _command_offset "$((end + 1))"
            else
                mapfile -t COMPREPLY < <(compgen -c -f -- "$current")
            fi
            return
        fi
    fi
    case $before in
    --op | --ops) mapfile -t COMPREPLY < <(compgen -W 'all_gather reduce_scatter all_reduce' -- "$current") ;;
    --require)
        mapfile -t COMPREPLY < <(compgen -W "'all_gather>=' 'reduce_scatter>=' 'all_reduce>='" -- "$current")
        ;;
    --dtype)
        mapfile -t COMPREPLY < <(compgen -W 'int8 uint8 int32 uint32 int64 uint64 fp16 fp32 fp64 bf16 fp8e4m3 fp8e5m2' \
            -- "$current")
        ;;
    --dtypes) mapfile -t COMPREPLY < <(compgen -W 'bf16 fp32' -- "$current") ;;
    --redops) mapfile -t COMPREPLY < <(compgen -W 'sum avg' -- "$current") ;;
    --redop) mapfile -t COMPREPLY < <(compgen -W 'sum prod max min avg premulsum' -- "$current") ;;
    --policy | --audit | --shim | --html | --trace | --plot | --out) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    --libs) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    --bytes | --nranks | --nccl | --runs | --seconds) ;;
    --min-bytes | --max-bytes | --factor | --ranks | --rounds | --timeout) ;;
    *)
        if [[ $current == -* ]]; then
            mapfile -t COMPREPLY < <(compgen -W "$(_symmshim_options "$command")" -- "$current")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$current")
        fi
        ;;
    esac
}

complete -o filenames -o bashdefault -F _symmshim symmshim
