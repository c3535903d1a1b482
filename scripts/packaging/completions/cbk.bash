# Completion of cbk for bash: `cbk complete` knows the words, bash the files.

_cbk() {
  local i word between line=${COMP_LINE:0:COMP_POINT} current="" words=()
  # bash parts words at '=' and ':' as well; what has no space between is one word.
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    between=${line%%"$word"*}
    if ((i > 0)) && [[ -z $between && ( $word == [=:]* || $current == *[=:] ) ]]; then
      current+=$word
    else
      ((i == 0)) || words+=("$current")
      current=$word
    fi
    line=${line#*"$word"}
  done
  COMPREPLY=()
  local lines kind
  mapfile -t lines < <("${COMP_WORDS[0]/#\~\//$HOME/}" complete --quoted -- "${words[@]:1}" "$current" 2>/dev/null)
  kind=${lines[0]}
  # What is replaced is only what is behind the last '=' or ':'.
  local cut="" quote="" last=${COMP_WORDS[COMP_CWORD]}
  [[ $current == *[=:]* && $current != [\'\"]* ]] && cut=${current%"${current##*[=:]}"}
  [[ $last == [\'\"]* ]] && quote=${last:0:1}
  [[ $last == [=:] ]] && last=""
  case $kind in
    files | folders)
      compopt -o filenames 2>/dev/null
      if [[ $kind == files ]]; then
        mapfile -t COMPREPLY < <(compgen -f -- "${last#"$quote"}")
      else
        mapfile -t COMPREPLY < <(compgen -d -- "${last#"$quote"}")
      fi
      return
      ;;
  esac
  for word in "${lines[@]:1}"; do
    word=${word%%$'\t'*}
    word=${word#"$cut"}
    if [[ -z $quote ]]; then
      printf -v word %q "$word"
    elif [[ $word == *[\'\"\\\`\$!]* ]]; then
      continue # it would end the quotes, or be expanded in them
    fi
    COMPREPLY+=("$word")
  done
}

complete -F _cbk cbk
