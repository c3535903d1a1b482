# Completion of cbk for fish: `cbk complete` knows the words, fish the files.

function __cbk_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] complete --quoted -- (string escape -- $words[2..-1]) $current 2>/dev/null)
    switch "$lines[1]"
        case files folders
            set -l prefix (string match -r -- '^--[^=]+=' $current)
            set -l start (string replace -r -- '^--[^=]+=' '' $current)
            set -l paths
            if test "$lines[1]" = files
                set paths (__fish_complete_path $start)
            else
                set paths (__fish_complete_directories $start)
            end
            for path in $paths
                echo -- "$prefix$path"
            end
        case '*'
            printf '%s\n' $lines[2..-1]
    end
end

complete -c cbk -f -a '(__cbk_complete)'
